// Products with quantised weights. Few rows are bound by reading the codes: sums of codes times x
// are multiplied by the scales of their groups, and biases by the sums of x over groups, which are
// the same for all weights. For many rows, strips of weights are widened first.
#include "quantized_matmul.h"

#include "codes.h"
#include "dots.h"
#include "nibbles.h"
#include "panel.h"
#include "tasks.h"

namespace torchmlx::ISA {
namespace {

// Panel uses others; each thread has its own FACTORS.
enum { FACTORS = 5, X, GROUPS };

// Rows up to which codes are read for every MOST_ROWS of them.
constexpr int64_t FEW_ROWS = 24;

// A row's scales, or biases, as floats; zeros follow for a vector.
void widen_row(const QuantizedMatmul& p, const void* scales, bool floating, int64_t row,
               float* to) {
  int64_t count = p.k / p.group;
  auto widen_all = [&](auto value) INLINE_LAMBDA {
    int64_t i = 0;
    for (; i + W <= count; i += W) {
      store(to + i, value(row * count + i, W));
    }
    if (i < count) {
      store(to + i, value(row * count + i, count - i));
    }
  };
  if (floating) {
    with_type(p.scale_type, [&](auto zero) {
      auto* from = static_cast<const decltype(zero)*>(scales);
      widen_all([&](int64_t i, int64_t n) INLINE_LAMBDA {
        return n < W ? load(from + i, n) : load(from + i);
      });
    });
  } else {
    auto* from = static_cast<const uint8_t*>(scales);
    widen_all([&](int64_t i, int64_t n) INLINE_LAMBDA {
      vb codes = load_codes(from + i, n);
      if (p.scaling != p.e8m0) {
        return widen_codes(codes);
      }
      vu exponent = widen_bytes(codes);
      return bits_to_float(select((vi)(exponent == 0), splat_bits(0x400000), exponent << 23));
    });
  }
  store(to + count, vf{});
}

// sums[r] of rows x[r], arranged, and a row of codes: their lanes add up to the result. All codes of
// a lane are of one group, groups[lane] after the step's first one. `shift` is the logarithm of the
// groups' size.
template <class Format, class Words, int R>
INLINE void group_dots(int64_t k, int shift, vi groups, const uint32_t* const (&x)[R],
                       const uint8_t* w, const float* factors, vf (&sums)[R]) {
  // One row alone has two sums, to hide the latency of multiply-adds.
  constexpr int CHAINS = R == 1 ? 2 : 1;
  for (int64_t at = 0, word = 0; at < k;) {
    vf factor = __builtin_shuffle(load(factors + (at >> shift)), groups) * Format::FACTOR;
    vf products[R][CHAINS] = {};
    int64_t end = min(k, at + (1 << shift));
    do {
      vf parts[Format::PARTS];
      const uint8_t* here = w + at / Format::CODES;
      if (k - at < Format::STEP) {
        read_rest<Format>(here, k - at, parts);
      } else {
        __builtin_prefetch(here + AHEAD);
        Format::read(here, parts);
      }
      for (int r = 0; r < R; ++r) {
        for (int i = 0; i < Format::PARTS; ++i) {
          vf& product = products[r][i % CHAINS];
          product = Words::multiply(product, read<vf>(x[r] + word + i * W), parts[i]);
        }
      }
      at += Format::STEP;
      word += Format::PARTS * W;
    } while (at < end);
    for (int r = 0; r < R; ++r) {
      sums[r] += (products[r][0] + (CHAINS > 1 ? products[r][CHAINS - 1] : vf{})) * factor;
    }
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
 public:
  explicit Few(const QuantizedMatmul& p)
      : p_(p), groups_(p.k / p.group), row_(divide_up(groups_, W) * W + W),
        shift_(__builtin_ctzll(p.group)) {
    for (int i = 0; i < W; ++i) {
      lane_groups_[i] = static_cast<int32_t>(i * (Format::STEP / W) / p.group);
    }
  }

  void compute() {
    x_ = arrange_rows<Format, Words>(X, static_cast<const T*>(p_.x), p_.x_row, p_.x_k, p_.m, p_.k);
    if (p_.biases) {
      group_sums_ = sums_of_groups<T>(p_, row_);
    }
    parallel(p_.n, task_rows(p_.n, p_.k / Format::CODES), [&](int64_t begin, int64_t end) {
      auto* factors = static_cast<float*>(scratch(FACTORS, 8 * AT_ONCE * row_));
      for (; begin < end; begin += AT_ONCE) {
        columns(begin, min(begin + AT_ONCE, end), factors, factors + AT_ONCE * row_);
      }
    });
  }

 private:
  void columns(int64_t begin, int64_t end, float* factors, float* biases) {
    // All before the first is read: what has just been written in other pieces is waited for.
    for (int64_t column = begin; column < end; ++column) {
      int64_t at = (column - begin) * row_;
      widen_row(p_, p_.scales, p_.scaling == p_.floating, column, factors + at);
      if (p_.biases) {
        widen_row(p_, p_.biases, true, column, biases + at);
      }
    }
    float values[FEW_ROWS * AT_ONCE];
    for (int64_t column = begin; column < end; ++column, factors += row_, biases += row_) {
      float* here = values + (column - begin);
      for (int64_t row = 0; row < p_.m; row += MOST_ROWS) {
        int64_t rows = min(MOST_ROWS, p_.m - row);
        if (rows == 1) {
          some_rows<1>(row, rows, column, factors, biases, here);
        } else if (rows <= 4) {
          some_rows<4>(row, rows, column, factors, biases, here);
        } else {
          some_rows<MOST_ROWS>(row, rows, column, factors, biases, here);
        }
      }
    }
    for (int64_t row = 0; row < p_.m; ++row) {
      store_all(static_cast<T*>(p_.out) + row * p_.n + begin, values + row * AT_ONCE, end - begin);
    }
  }

  template <int R>
  void some_rows(int64_t row, int64_t rows, int64_t column, const float* factors,
                 const float* biases, float* values) {
    const uint32_t* x[R];
    for (int64_t r = 0; r < R; ++r) {
      x[r] = x_ + (row + min(r, rows - 1)) * arranged<Format>(p_.k);
    }
    vf sums[R] = {};
    const uint8_t* w = p_.w + column * p_.k / Format::CODES;
    group_dots<Format, Words>(p_.k, shift_, lane_groups_, x, w, factors, sums);
    bool nan = false;
    if constexpr (Format::SPECIAL) {
      nan = Format::has_nan(w, p_.k);
    }
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t g = 0; p_.biases && g < groups_; g += W) {
        sums[r] += load(biases + g) * load(group_sums_ + (row + r) * row_ + g);
      }
      values[(row + r) * AT_ONCE] = nan ? __builtin_nanf("") : across(sums[r]);
    }
  }

  const QuantizedMatmul& p_;
  int64_t groups_, row_;  // of scales, widened: zeros follow
  int shift_;
  vi lane_groups_;
  const uint32_t* x_ = nullptr;
  const float* group_sums_ = nullptr;
};

// What Panel multiplies by: weights themselves as floats. As pairs of bf16, codes times scales that
// are a few bits long are exact; affine weights would be rounded, so codes are multiplied, and their
// sums scaled.
template <class Code, class Words>
struct Groups {
  using Format = ByLanes<Code, Words>;
  static constexpr bool PAIRS = Words::VALUES == 2, NIBBLE = Format::CODES == 2;
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
        const uint8_t* here = p_.w + ((column_ + i) * p_.k + begin + at) / Format::CODES;
        if (count - at < Format::STEP) {
          read_rest<Format>(here, count - at, parts);
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

// Many rows take formats whose steps are within a group.
template <class T, template <class> class Code, template <class> class Short = Code>
void multiply(const QuantizedMatmul& p) {
  if (p.m <= FEW_ROWS) {
    using Words = typename WordsOf<T>::Type;
    Few<T, Code<Words>, Words>(p).compute();
    return;
  }
  with_panel_words<T>([&](auto words) {
    using Words = decltype(words);
    many_rows<T, Words, Short<Words>>(p);
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
      multiply<T, LongE4m3, E4m3>(p);
    }
  });
}

}  // namespace torchmlx::ISA
