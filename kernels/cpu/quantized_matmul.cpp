// Products with quantised weights. Few rows are bound by reading the codes: sums of codes times x
// are multiplied by the scales of their groups, and biases by the sums of x over groups, which are
// the same for all weights. For many rows, strips of weights are widened first.
#include "quantized_matmul.h"

#include "dots.h"
#include "nibbles.h"
#include "panel.h"

namespace torchmlx::ISA {
namespace {

// Panel uses others; each thread has its own FACTORS.
enum { FACTORS = 5, X, GROUPS };

// Rows up to which codes are read for every MOST_ROWS of them.
constexpr int64_t FEW_ROWS = 24;

// Bytes of codes that a task reads.
constexpr int64_t TASK = 64 << 10;

int64_t bits(const QuantizedMatmul& p) {
  return p.codes == p.integers4 || p.codes == p.e2m1 ? 4 : 8;
}

// A row's scales, or biases, as floats; zeros follow for a vector.
void widen_row(const QuantizedMatmul& p, const void* scales, bool floating, int64_t row,
               float* to) {
  int64_t count = p.k / p.group;
  auto* codes = static_cast<const uint8_t*>(scales) + row * count;
  if (floating) {
    with_type(p.scale_type, [&](auto zero) {
      auto* from = static_cast<const decltype(zero)*>(scales) + row * count;
      int64_t i = 0;
      for (; i + W <= count; i += W) {
        store(to + i, load(from + i));
      }
      if (i < count) {
        store(to + i, load(from + i, count - i));
      }
    });
  } else if (p.scaling == p.e8m0) {
    for (int64_t i = 0; i < count; ++i) {
      uint32_t value = codes[i] ? static_cast<uint32_t>(codes[i]) << 23 : 0x400000;
      to[i] = read<float>(&value);
    }
  } else {
    using Format = E4m3<Floats>;
    for (int64_t i = 0; i < count; i += W) {
      vf parts[1];
      if (count - i < W) {
        read_rest<Format>(codes + i, count - i, parts);
      } else {
        Format::read(codes + i, parts);
      }
      store(to + i, parts[0] * Format::FACTOR);
    }
    for (int64_t i = 0; Format::has_nan(codes, count) && i < count; ++i) {
      to[i] = Format::is_nan(codes[i]) ? __builtin_nanf("") : to[i];
    }
  }
  memset(to + count, 0, 4 * W);
}

// result[r] of rows x[r], arranged, and a row of codes of eight bits; a group has whole steps.
template <class Format, class Words, int R>
INLINE void byte_dots(int64_t k, int64_t group, const uint32_t* const (&x)[R], const uint8_t* w,
                      const float* factors, float* result) {
  vf totals[R] = {};
  for (int64_t at = 0, word = 0; at < k; ++factors) {
    __builtin_prefetch(w + at + AHEAD);
    vf sums[R] = {};
    for (int64_t end = at + group; at < end; at += Format::STEP, word += W) {
      vf parts[1];
      Format::read(w + at, parts);
      add_step<Format, Words>(sums, x, word, parts);
    }
    for (int r = 0; r < R; ++r) {
      totals[r] += sums[r] * (*factors * Format::FACTOR);
    }
  }
  bool nan = false;
  if constexpr (Format::SPECIAL) {
    nan = Format::has_nan(w, k);
  }
  for (int r = 0; r < R; ++r) {
    result[r] = nan ? __builtin_nanf("") : across(totals[r]);
  }
}

// result[r] of rows x[r], arranged, and a row of codes of four bits. All codes of a lane are of one
// group: the factor of lane i is that of the i / lanes-th group from the step's first one.
template <class Format, class Words, int R>
INLINE void nibble_dots(int64_t k, int64_t group, const uint32_t* const (&x)[R], const uint8_t* w,
                        const float* factors, float* result) {
  const int64_t lanes = group * W / Format::STEP;  // of a group
  vi lane;
  for (int i = 0; i < W; ++i) {
    lane[i] = lanes ? static_cast<int32_t>(i / lanes) : 0;
  }
  vf totals[R] = {};
  for (int64_t at = 0, word = 0; at < k; at += Format::STEP, word += Format::PARTS * W) {
    vf parts[Format::PARTS];
    if (k - at < Format::STEP) {
      uint8_t padded[Format::STEP / 2] = {};
      memcpy(padded, w + at / 2, (k - at) / 2);
      Format::read(padded, parts);
    } else {
      __builtin_prefetch(w + at / 2 + AHEAD);
      Format::read(w + at / 2, parts);
    }
    vf factor = __builtin_shuffle(load(factors + at / group), lane);
    for (int r = 0; r < R; ++r) {
      vf even = {}, odd = {};
      for (int i = 0; i < Format::PARTS; i += 2) {
        even = Words::multiply(even, read<vf>(x[r] + word + i * W), parts[i]);
        odd = Words::multiply(odd, read<vf>(x[r] + word + (i + 1) * W), parts[i + 1]);
      }
      totals[r] += (even + odd) * factor;
    }
  }
  for (int r = 0; r < R; ++r) {
    result[r] = across(totals[r]);
  }
}

// The sum of each row of x over each group, in rows of `row`; zeros follow.
template <class T>
const float* sums_of_groups(const QuantizedMatmul& p, int64_t row) {
  auto* sums = static_cast<float*>(scratch(GROUPS, 4 * p.m * row));
  parallel(p.m, MOST_ROWS, [&](int64_t begin, int64_t end) {
    memset(sums + begin * row, 0, 4 * (end - begin) * row);
    for (int64_t r = begin; r < end; ++r) {
      const T* x = static_cast<const T*>(p.x) + r * p.x_row;
      for (int64_t g = 0; g < p.k / p.group; ++g) {
        int64_t begin = g * p.group, end = begin + p.group;
        vf total = {};
        for (int64_t i = begin; p.x_k == 1 && i < end; i += W) {
          total += load(x + i);
        }
        float sum = ISA::sum(total);
        for (int64_t i = begin; p.x_k != 1 && i < end; ++i) {
          sum += to_float(x[i * p.x_k]);
        }
        sums[r * row + g] = sum;
      }
    }
  });
  return sums;
}

template <class T, class Format, class Words>
class Few {
  static constexpr bool NIBBLE = Format::PARTS > 1;

 public:
  explicit Few(const QuantizedMatmul& p)
      : p_(p), groups_(p.k / p.group), sums_row_(divide_up(groups_, W) * W) {}

  void compute() {
    x_ = arrange_rows<Format, Words>(X, static_cast<const T*>(p_.x), p_.x_row, p_.x_k, p_.m, p_.k);
    if (p_.biases) {
      group_sums_ = sums_of_groups<T>(p_, sums_row_);
    }
    int64_t grain = max(1, TASK / max(1, p_.k * bits(p_) / 8));
    parallel(p_.n, grain, [&](int64_t begin, int64_t end) {
      auto* factors = static_cast<float*>(scratch(FACTORS, 8 * (sums_row_ + 2 * W)));
      for (int64_t column = begin; column < end; ++column) {
        widen_row(p_, p_.scales, p_.scaling == p_.floating, column, factors);
        if (p_.biases) {
          widen_row(p_, p_.biases, true, column, factors + sums_row_ + 2 * W);
        }
        for (int64_t row = 0; row < p_.m; row += MOST_ROWS) {
          some_rows(row, min(MOST_ROWS, p_.m - row), column, factors);
        }
      }
    });
  }

 private:
  void some_rows(int64_t row, int64_t rows, int64_t column, const float* factors) {
    float sums[MOST_ROWS];
    if (rows == 1) {
      of<1>(row, rows, column, factors, sums);
    } else if (rows <= 4) {
      of<4>(row, rows, column, factors, sums);
    } else {
      of<MOST_ROWS>(row, rows, column, factors, sums);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float value = sums[r] + (p_.biases ? bias(row + r, factors + sums_row_ + 2 * W) : 0.0f);
      store(static_cast<T*>(p_.out) + (row + r) * p_.n + column, splat(value), 1);
    }
  }

  template <int R>
  void of(int64_t row, int64_t rows, int64_t column, const float* factors, float* sums) {
    const uint32_t* x[R];
    for (int64_t r = 0; r < R; ++r) {
      x[r] = x_ + (row + min(r, rows - 1)) * arranged<Format>(p_.k);
    }
    const uint8_t* w = p_.w + column * (p_.k * bits(p_) / 8);
    if constexpr (NIBBLE) {
      nibble_dots<Format, Words>(p_.k, p_.group, x, w, factors, sums);
    } else {
      byte_dots<Format, Words>(p_.k, p_.group, x, w, factors, sums);
    }
  }

  float bias(int64_t row, const float* biases) const {
    vf total = {};
    for (int64_t g = 0; g < groups_; g += W) {
      total += load(biases + g) * load(group_sums_ + row * sums_row_ + g);
    }
    return across(total);
  }

  const QuantizedMatmul& p_;
  int64_t groups_, sums_row_;
  const uint32_t* x_ = nullptr;
  const float* group_sums_ = nullptr;
};

// What Panel multiplies by: weights themselves as floats. As pairs of bf16, codes times scales that
// are a few bits long are exact; affine weights would be rounded, so codes are multiplied, and their
// sums scaled.
template <class Code, class Words>
struct Groups {
  using Format = ByLanes<Code, Words>;
  static constexpr bool PAIRS = Words::VALUES == 2, NIBBLE = Format::PARTS > 1;
  static constexpr int64_t CODES = NIBBLE ? 2 : 1;  // in a byte
  const QuantizedMatmul& p;
  const float* sums;  // of x over groups, [m, groups]; where biases multiply them

  int64_t groups() const { return p.k / p.group; }
  int64_t padded() const { return groups() + W; }
  int64_t block() const { return PANEL_VALUES * Words::VALUES; }
  bool scales_sums() const { return PAIRS && p.biases; }

  class Strips {
   public:
    Strips(const Groups& from, int64_t column, int64_t columns)
        : from_(from), p_(from.p), column_(column), columns_(columns) {
      int64_t padded = from.padded();
      int64_t in_block = from.block() / p_.group;
      factors_ = static_cast<float*>(scratch(FACTORS, 8 * COLUMNS * (padded + in_block)));
      biases_ = factors_ + COLUMNS * padded;
      turned_ = biases_ + COLUMNS * padded;
      memset(factors_, 0, 8 * COLUMNS * padded);
      for (int64_t c = 0; c < columns; ++c) {
        widen_row(p_, p_.scales, p_.scaling == p_.floating, column + c, factors_ + c * padded);
        if (p_.biases) {
          widen_row(p_, p_.biases, true, column + c, biases_ + c * padded);
        }
      }
      for (int i = 0; NIBBLE && i < W; ++i) {
        lane_[i] = static_cast<int32_t>(8 * i / p_.group);
      }
    }

    void pack(uint32_t* to, int64_t begin, int64_t count, int64_t steps) {
      first_ = begin / p_.group;
      count_ = count / p_.group;
      if (from_.scales_sums()) {
        turn();
      }
      auto read_step = [&](int64_t i, int64_t at, vf (&parts)[Format::PARTS]) INLINE_LAMBDA {
        const uint8_t* here = p_.w + ((column_ + i) * p_.k + begin + at) / CODES;
        if (count - at < Format::STEP) {
          uint8_t padded[Format::STEP / CODES] = {};
          memcpy(padded, here, (count - at) / CODES);
          Format::read(padded, parts);
        } else {
          Format::read(here, parts);
        }
        if (!from_.scales_sums()) {
          int64_t group = i * from_.padded() + (begin + at) / p_.group;
          scale(parts, of_lanes(factors_ + group) * Code::FACTOR, of_lanes(biases_ + group));
        }
      };
      pack_codes<Format, Words>(to, columns_, count, steps, read_step);
    }

    void add(float* sums, int64_t row, const PackedBlock<Words>& packed, bool resume) const {
      if (!from_.scales_sums()) {
        packed.multiply(0, packed.steps, sums, resume);
        return;
      }
      int64_t words = p_.group / Words::VALUES;
      for (int64_t g = 0; g < count_; ++g) {
        const float* factors = turned_ + 2 * g * COLUMNS;
        const float* biases = factors + COLUMNS;
        const float* x = from_.sums + row * from_.groups() + first_ + g;
        add_scaled(sums, packed, g * words, words, factors, resume || g > 0,
                   [&](vf value, int64_t r, int64_t v) INLINE_LAMBDA {
                     return value + load(biases + v) * x[r * from_.groups()];
                   });
      }
    }

    bool spoils(int64_t c) const {
      if constexpr (Code::SPECIAL) {
        return Code::has_nan(p_.w + (column_ + c) * p_.k, p_.k);
      }
      return false;
    }

   private:
    static constexpr int COLUMNS = PANEL_COLUMNS<Words>;

    // All columns' factors, then biases, of each group of the block.
    void turn() {
      for (int64_t g = 0; g < count_; ++g) {
        for (int64_t c = 0; c < COLUMNS; ++c) {
          turned_[2 * g * COLUMNS + c] = factors_[c * from_.padded() + first_ + g];
          turned_[(2 * g + 1) * COLUMNS + c] = biases_[c * from_.padded() + first_ + g];
        }
      }
    }

    // The value of each lane's group; a step of bytes lies in one.
    INLINE_LAMBDA vf of_lanes(const float* values) const {
      return NIBBLE ? __builtin_shuffle(load(values), lane_) : splat(*values);
    }

    INLINE_LAMBDA static void scale(vf (&parts)[Format::PARTS], vf factor, vf bias) {
      for (vf& part : parts) {
        if constexpr (PAIRS) {
          vu bits = float_to_bits(part);
          vu low = float_to_bits(bits_to_float(bits << 16) * factor);
          vu high = float_to_bits(bits_to_float(bits & 0xffff0000u) * factor);
          part = bits_to_float(low >> 16 | (high & 0xffff0000u));
        } else {
          part = part * factor + bias;
        }
      }
    }

    const Groups& from_;
    const QuantizedMatmul& p_;
    int64_t column_, columns_, first_ = 0, count_ = 0;
    float *factors_, *biases_, *turned_;
    vi lane_ = {};
  };
};

template <class Words>
using Integers4 = Nibbles<Words, true>;
template <class Words>
using E2m1 = Nibbles<Words, false>;

template <class T, class Words, class Code>
void many_rows(const QuantizedMatmul& p) {
  auto* x = static_cast<const T*>(p.x);
  Groups<Code, Words> weights{p, nullptr};
  if (weights.scales_sums()) {
    weights.sums = sums_of_groups<T>(p, weights.groups());
  }
  Rounded<T> keep{static_cast<T*>(p.out), nullptr, p.n};
  Panel<T, Words, Groups<Code, Words>, Rounded<T>>(x, p.x_row, p.x_k, p.m, p.n, p.k, weights, keep)
      .compute();
}

template <class T, template <class> class Code>
void multiply(const QuantizedMatmul& p) {
  if (p.m <= FEW_ROWS) {
    using Words = typename WordsOf<T>::Type;
    Few<T, Code<Words>, Words>(p).compute();
    return;
  }
  with_panel_words<T>([&](auto words) {
    using Words = decltype(words);
    many_rows<T, Words, Code<Words>>(p);
  });
}

}  // namespace

void quantized_matmul(const QuantizedMatmul& p) {
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    if (p.codes == p.integers4) {
      multiply<T, Integers4>(p);
    } else if (p.codes == p.e2m1) {
      multiply<T, E2m1>(p);
    } else if (p.codes == p.integers8) {
      multiply<T, Integers>(p);
    } else {
      multiply<T, E4m3>(p);
    }
  });
}

}  // namespace torchmlx::ISA
