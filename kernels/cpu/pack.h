// What tiles and dots multiply, and strips of a matrix rearranged for register tiles.
//
// A strip is up to `width` lanes (rows of a, or columns of b) of k values each. Packed, the lanes of
// one step lie together: dst[step][width], in 32-bit words that hold a float or a pair of bf16.
#pragma once

#include "amx/amx.h"
#include "simd.h"

namespace torchmlx::ISA {

// Each thread's memory, see `scratch`.
enum Slot { A, B, SUMS };

// A tile of ROWS x COLUMNS sums fills the registers, but for b's vectors and one of a.
#if defined(__AVX512F__)
constexpr int ROWS = 14, VECTORS = 2;  // 32 registers
#elif defined(__aarch64__)
constexpr int ROWS = 8, VECTORS = 3;  // 32 registers
#elif defined(__AVX2__)
constexpr int ROWS = 6, VECTORS = 2;  // 16 registers
#else
constexpr int ROWS = 4, VECTORS = 2;  // 16 registers
#endif
constexpr int COLUMNS = VECTORS * W;

// Sums in registers.
struct Registers {
  static constexpr bool TILES = false;
  static constexpr int ROWS = torchmlx::ISA::ROWS, COLUMNS = torchmlx::ISA::COLUMNS;
  static constexpr int UNIT = 1;  // steps are a multiple of it
};

// What a tile multiplies: floats, to which half types are widened.
struct Floats : Registers {
  static constexpr int VALUES = 1;  // of k in a word
  template <class T>
  using Kept = float;  // what values of type T become beside it
  INLINE vf spread(uint32_t word) { return splat(read<float>(&word)); }
  INLINE vf multiply(vf sum, vf a, vf b) { return sum + a * b; }
};

#if defined(__AVX512BF16__)
// Pairs of bf16, whose two products are added to a float at once. Subnormal inputs count as zero.
struct Pairs : Registers {
  static constexpr int VALUES = 2;
  template <class T>
  using Kept = T;
  INLINE vf spread(uint32_t word) { return bits_to_float(splat_bits(word)); }
  INLINE vf multiply(vf sum, vf a, vf b) {
    return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

// Pairs of bf16 for AMX's tiles, see amx/amx.h.
struct Tiles {
  static constexpr bool TILES = true;
  static constexpr int ROWS = TileProduct::ROWS, COLUMNS = TileProduct::COLUMNS;
  static constexpr int UNIT = TileProduct::STEPS;
  static constexpr int VALUES = 2;
  template <class T>
  using Kept = T;
};

// What registers multiply values of type T in.
template <class T>
struct WordsOf {
  using Type = Floats;
};
#if defined(__AVX512BF16__)
template <>
struct WordsOf<bfloat> {
  using Type = Pairs;
};
#endif

// Calls f with the words that many rows of T are multiplied in.
template <class T, class F>
INLINE void with_words(const F& f) {
  if constexpr (is_bfloat<T>) {
    if (tiles_in_use()) {
      f(Tiles{});
      return;
    }
  }
  f(typename WordsOf<T>::Type{});
}

// Lanes a0 b0 a1 b1 ... of the lower or the upper halves.
template <int HALF>
INLINE vf interleave(vf a, vf b) {
  constexpr int S = HALF * W / 2;
#if defined(__AVX512F__)
  return __builtin_shufflevector(a, b, S, S + W, S + 1, S + 1 + W, S + 2, S + 2 + W, S + 3,
                                 S + 3 + W, S + 4, S + 4 + W, S + 5, S + 5 + W, S + 6, S + 6 + W,
                                 S + 7, S + 7 + W);
#elif defined(__AVX2__)
  return __builtin_shufflevector(a, b, S, S + W, S + 1, S + 1 + W, S + 2, S + 2 + W, S + 3,
                                 S + 3 + W);
#else
  return __builtin_shufflevector(a, b, S, S + W, S + 1, S + 1 + W);
#endif
}

// Transposes W vectors of W words: log2(W) rounds of interleaving each row with the one half the
// rows further on.
INLINE void transpose(vf (&rows)[W]) {
  vf other[W];
#pragma GCC unroll 4
  for (int round = W; round > 1; round /= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < W / 2; ++i) {
      other[2 * i] = interleave<0>(rows[i], rows[i + W / 2]);
      other[2 * i + 1] = interleave<1>(rows[i], rows[i + W / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) {
      rows[i] = other[i];
    }
  }
}

// The sums of W vectors, each in the lane of its number. `vectors` are used up.
INLINE vf sums_of(vf (&vectors)[W]) {
#pragma GCC unroll 4
  for (int half = W / 2; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) {
      vectors[i] = interleave<0>(vectors[i], vectors[i + half]) +
                   interleave<1>(vectors[i], vectors[i + half]);
    }
  }
  return vectors[0];
}

// W words (fewer: n values of k, then zeros) that start at p.
template <class Words, class T>
INLINE vf load_words(const T* p, int64_t n) {
  if constexpr (Words::VALUES == 1) {
    return n >= W ? load(p) : load(p, n);
  } else {
    if (n >= 2 * W) {
      return read<vf>(p);
    }
    uint32_t words[W] = {};
    memcpy(words, p, n * sizeof(T));
    return read<vf>(words);
  }
}

// Lanes whose k values are contiguous, `lane_stride` apart. Stores of a narrow strip overlap the
// next step, which then overwrites them; the last ones must not run over the end.
template <class Words, class T>
static void pack_along_k(uint32_t* dst, int width, int64_t lanes, const T* src,
                         int64_t lane_stride, int64_t k) {
  int64_t steps = divide_up(k, Words::VALUES), words = steps * width;
  for (int64_t lane = 0; lane < width; lane += W) {
    for (int64_t step = 0; step < steps; step += W) {
      vf rows[W];
      int64_t left = k - step * Words::VALUES;
      for (int i = 0; i < W; ++i) {
        rows[i] = lane + i < lanes ? load_words<Words>(
                                         src + (lane + i) * lane_stride + step * Words::VALUES, left)
                                   : vf{};
      }
      transpose(rows);
      int64_t here = min(W, steps - step);
      for (int64_t i = 0; i < here; ++i) {
        int64_t at = (step + i) * width + lane;
        float* to = reinterpret_cast<float*>(dst) + at;
        if (at + W <= words) {
          store(to, rows[i]);
        } else {
          store(to, rows[i], words - at);
        }
      }
    }
  }
}

// Lanes that are contiguous themselves, k values `k_stride` apart.
template <class T>
static void pack_along_lanes(uint32_t* dst, int width, int64_t lanes, const T* src,
                             int64_t k_stride, int64_t k) {
  float* to = reinterpret_cast<float*>(dst);
  for (int64_t step = 0; step < k; ++step, src += k_stride, to += width) {
    int64_t lane = 0;
    for (; lane + W <= lanes; lane += W) {
      store(to + lane, load(src + lane));
    }
    if (lane < lanes) {
      store(to + lane, load(src + lane, lanes - lane), lanes - lane);
    }
    for (lane = lanes; lane < width; ++lane) {
      to[lane] = 0.0f;
    }
  }
}

template <class Words, class T>
static void pack_pairs_along_lanes(uint32_t* dst, int width, int64_t lanes, const T* src,
                                   int64_t k_stride, int64_t k) {
  for (int64_t step = 0; step < k; step += 2, dst += width) {
    const T* low = src + step * k_stride;
    const T* high = low + k_stride;
    bool pair = step + 1 < k;
    int64_t lane = 0;
    for (; pair && lane + W <= lanes; lane += W) {
      write(dst + lane, widen_bits(read<vh>(low + lane)) | widen_bits(read<vh>(high + lane)) << 16);
    }
    for (; lane < lanes; ++lane) {
      dst[lane] = low[lane].bits | (pair ? static_cast<uint32_t>(high[lane].bits) << 16 : 0);
    }
    for (; lane < width; ++lane) {
      dst[lane] = 0;
    }
  }
}

template <class Words, class T>
static void pack_anyhow(uint32_t* dst, int width, int64_t lanes, const T* src, int64_t lane_stride,
                        int64_t k_stride, int64_t k) {
  for (int64_t step = 0; step < k; step += Words::VALUES, dst += width) {
    for (int64_t lane = 0; lane < width; ++lane) {
      const T* p = src + lane * lane_stride + step * k_stride;
      uint32_t word = 0;
      if (lane < lanes) {
        if constexpr (Words::VALUES == 1) {
          float value = to_float(*p);
          word = read<uint32_t>(&value);
        } else {
          word = p->bits | (step + 1 < k ? static_cast<uint32_t>(p[k_stride].bits) << 16 : 0);
        }
      }
      dst[lane] = word;
    }
  }
}

template <class Words, class T>
static void pack(uint32_t* dst, int width, int64_t lanes, const T* src, int64_t lane_stride,
                 int64_t k_stride, int64_t k) {
  if (k_stride == 1 && (width <= W || width % W == 0)) {
    pack_along_k<Words>(dst, width, lanes, src, lane_stride, k);
  } else if (lane_stride == 1) {
    if constexpr (Words::VALUES == 1) {
      pack_along_lanes(dst, width, lanes, src, k_stride, k);
    } else {
      pack_pairs_along_lanes<Words>(dst, width, lanes, src, k_stride, k);
    }
  } else {
    pack_anyhow<Words>(dst, width, lanes, src, lane_stride, k_stride, k);
  }
}

}  // namespace torchmlx::ISA
