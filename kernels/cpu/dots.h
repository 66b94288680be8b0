// Rows of weights, read once, times a few rows of x: bound by reading the weights.
#pragma once

#include "formats.h"

namespace torchmlx::ISA {

// Rows of x that are multiplied at a time: as many as there are registers for.
constexpr int64_t MOST_ROWS = W == 16 ? 8 : 4;

// Bytes by which weights are asked for before they are needed. They are read in order, row after
// row: four rows of 2 KiB at a time come at half the speed (AMD EPYC, Zen 4, 2026-12-02).
constexpr int64_t AHEAD = 2048;

// Rows of weights whose sums a task keeps at a time.
constexpr int64_t MOST_COLUMNS = 256;

// Words of a row of x that is arranged for a format: whole steps.
template <class Format>
INLINE int64_t arranged(int64_t k) {
  return divide_up(k, Format::STEP) * Format::PARTS * W;
}

// Whether a format keeps the order of memory.
template <class Format>
constexpr bool in_order() {
  int64_t i = 0;
  while (i < Format::STEP && Format::place(i) == i) {
    ++i;
  }
  return i == Format::STEP;
}

// A row of k values of x, `stride` apart, as words in the order of a format; zeros follow.
template <class Format, class Words, class T>
static void arrange(uint32_t* to, const T* x, int64_t stride, int64_t k) {
  using Kept = typename Words::template Kept<T>;
  auto* out = reinterpret_cast<Kept*>(to);
  int64_t step = 0;
  if (sizeof(Kept) == sizeof(T) && in_order<Format>() && stride == 1 && k >= Format::STEP) {
    step = k / Format::STEP * Format::STEP;
    memcpy(to, x, step * sizeof(T));
  }
  for (; step < k; step += Format::STEP) {
    for (int64_t i = 0; i < Format::STEP; ++i) {
      Kept value{};
      if (step + i < k) {
        if constexpr (is_float<Kept>) {
          value = to_float(x[(step + i) * stride]);
        } else {
          value = x[(step + i) * stride];
        }
      }
      out[step + Format::place(i)] = value;
    }
  }
}

// The same for all rows, one after another, in this thread's memory.
template <class Format, class Words, class T>
static const uint32_t* arrange_rows(int slot, const T* x, int64_t row, int64_t stride, int64_t rows,
                                    int64_t k) {
  int64_t words = arranged<Format>(k);
  auto* to = static_cast<uint32_t*>(scratch(slot, 4 * rows * words));
  for (int64_t r = 0; r < rows; ++r) {
    arrange<Format, Words>(to + r * words, x + r * row, stride, k);
  }
  return to;
}

// What multiplies the sums of each stretch of `length` weights along k: a factor for each stretch
// of each block of `height` rows of weights, whose factors are `row` apart.
struct Scales {
  const float* values;
  int64_t height, row, length;

  const float* of(int64_t column) const {
    return values + static_cast<uint32_t>(column) / static_cast<uint32_t>(height) * row;
  }
};

// The first `left` weights at p, fewer than a step; zeros follow.
template <class Format>
INLINE void read_rest(const typename Format::Code* p, int64_t left, vf (&parts)[Format::PARTS]) {
  constexpr int64_t SIZE = sizeof(*p);
  const int64_t bytes = left * SIZE / Format::CODES;
  alignas(64) uint8_t padded[(Format::STEP * SIZE / Format::CODES + 63) / 64 * 64];
#if defined(__AVX512BW__)
  // In whole vectors: one that is read from pieces just written waits for them.
  for (int64_t at = 0; at < static_cast<int64_t>(sizeof padded); at += 64) {
    __mmask64 mask = bytes >= at + 64 ? ~0ull : bytes > at ? (1ull << (bytes - at)) - 1 : 0;
    auto* from = reinterpret_cast<const uint8_t*>(p) + at;
    _mm512_store_si512(padded + at, _mm512_maskz_loadu_epi8(mask, from));
  }
#else
  memset(padded, 0, sizeof padded);
  memcpy(padded, p, bytes);
#endif
  Format::read(reinterpret_cast<const typename Format::Code*>(padded), parts);
}

// The sum of all lanes, in registers.
INLINE float across(vf v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  return sum(v);
#endif
}

// sums[r] += the products of a step.
template <class Format, class Words, int R>
INLINE void add_step(vf (&sums)[R], const uint32_t* const (&x)[R], int64_t word,
                     const vf (&parts)[Format::PARTS]) {
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < Format::PARTS; ++i) {
      sums[r] = Words::multiply(sums[r], read<vf>(x[r] + word + i * W), parts[i]);
    }
  }
}

// result[r] of rows x[r], arranged, and the row w of weights.
template <class Format, class Words, int R>
INLINE void dots(int64_t k, const uint32_t* const (&x)[R], const typename Format::Code* w,
                 const float* factors, int64_t length, float* result) {
  // So many steps at once hide the latency of the multiply-adds.
  constexpr int UNROLL = R == 1 ? 4 : R < 8 ? 2 : 1;
  constexpr int64_t WORDS = Format::PARTS * W;
  vf totals[R] = {};
  int64_t word = 0;
  for (int64_t at = 0; at < k; ++factors) {
    int64_t end = min(at + length, k);
    vf sums[UNROLL][R] = {};
    vf parts[Format::PARTS];
    for (; at + UNROLL * Format::STEP <= end; at += UNROLL * Format::STEP) {
#pragma GCC unroll 4
      for (int u = 0; u < UNROLL; ++u, word += WORDS) {
        const typename Format::Code* here = w + at + u * Format::STEP;
        __builtin_prefetch(reinterpret_cast<const char*>(here) + AHEAD);
        Format::read(here, parts);
        add_step<Format, Words>(sums[u], x, word, parts);
      }
    }
    for (; at + Format::STEP <= end; at += Format::STEP, word += WORDS) {
      __builtin_prefetch(reinterpret_cast<const char*>(w + at) + AHEAD);
      Format::read(w + at, parts);
      add_step<Format, Words>(sums[0], x, word, parts);
    }
    if (at < end) {
      read_rest<Format>(w + at, end - at, parts);
      add_step<Format, Words>(sums[0], x, word, parts);
      at = end;
    }
    vf factor = splat(*factors * Format::FACTOR);
    for (int r = 0; r < R; ++r) {
      for (int u = 1; u < UNROLL; ++u) {
        sums[0][r] += sums[u][r];
      }
      totals[r] += sums[0][r] * factor;
    }
  }
  for (int r = 0; r < R; ++r) {
    result[r] = across(totals[r]);
  }
}

template <class Format, class Words, int R>
static void dots_of(int64_t k, const uint32_t* const* x, int64_t rows,
                    const typename Format::Code* w, int64_t w_row, int64_t begin, int64_t end,
                    const Scales& scales, float* sums) {
  const uint32_t* here[R];
  for (int64_t r = 0; r < R; ++r) {
    here[r] = x[min(r, rows - 1)];
  }
  for (int64_t column = begin; column < end; ++column, sums += MOST_ROWS) {
    const typename Format::Code* row = w + column * w_row;
    dots<Format, Words>(k, here, row, scales.of(column), scales.length, sums);
    if constexpr (Format::SPECIAL) {
      bool nan = Format::has_nan(row, k);
      for (int r = 0; nan && r < R; ++r) {
        sums[r] = __builtin_nanf("");
      }
    }
  }
}

// sums[column - begin][MOST_ROWS] of 1 to MOST_ROWS rows of x, given by their addresses, and the
// rows of weights [begin, end).
template <class Format, class Words>
static void all_dots(int64_t k, const uint32_t* const* x, int64_t rows,
                     const typename Format::Code* w, int64_t w_row, int64_t begin, int64_t end,
                     const Scales& scales, float* sums) {
  if (rows == 1) {
    dots_of<Format, Words, 1>(k, x, rows, w, w_row, begin, end, scales, sums);
  } else if (rows == 2) {
    dots_of<Format, Words, 2>(k, x, rows, w, w_row, begin, end, scales, sums);
  } else if (rows <= 4) {
    dots_of<Format, Words, 4>(k, x, rows, w, w_row, begin, end, scales, sums);
  } else {
    dots_of<Format, Words, MOST_ROWS>(k, x, rows, w, w_row, begin, end, scales, sums);
  }
}

}  // namespace torchmlx::ISA
