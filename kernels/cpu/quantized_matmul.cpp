// Products with quantised weights. Few rows are bound by reading the codes: sums of codes times x
// are multiplied by the scales of their groups, and biases by the sums of x over groups, which are
// the same for all weights. For many rows, weights become floats first.
#include "quantized_matmul.h"

#include "dots.h"
#include "matmul.h"
#include "nibbles.h"

namespace torchmlx::ISA {
namespace {

// Matmul uses others; each thread has its own FACTORS.
enum { FACTORS = 3, X, GROUPS, WEIGHTS, PRODUCTS };

// Rows up to which codes are read for every MOST_ROWS of them.
constexpr int64_t FEW_ROWS = 24;

// Bytes of codes that a task reads, and weights that are floats at a time.
constexpr int64_t TASK = 64 << 10, WIDE = 1 << 20;

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

template <class T, class Format, class Words, bool NIBBLE>
class Few {
 public:
  explicit Few(const QuantizedMatmul& p)
      : p_(p), groups_(p.k / p.group), sums_row_(divide_up(groups_, W) * W) {}

  void compute() {
    x_ = arrange_rows<Format, Words>(X, static_cast<const T*>(p_.x), p_.x_row, p_.x_k, p_.m, p_.k);
    if (p_.biases) {
      sum_groups();
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
  // The sum of each row of x over each group; zeros follow.
  void sum_groups() {
    group_sums_ = static_cast<float*>(scratch(GROUPS, 4 * p_.m * sums_row_));
    memset(group_sums_, 0, 4 * p_.m * sums_row_);
    for (int64_t r = 0; r < p_.m; ++r) {
      const T* x = static_cast<const T*>(p_.x) + r * p_.x_row;
      for (int64_t g = 0; g < groups_; ++g) {
        float sum = 0.0f;
        for (int64_t i = g * p_.group; i < (g + 1) * p_.group; ++i) {
          sum += to_float(x[i * p_.x_k]);
        }
        group_sums_[r * sums_row_ + g] = sum;
      }
    }
  }

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
  float* group_sums_ = nullptr;
};

// Values of all codes.
void list_values(const QuantizedMatmul& p, float (&values)[256]) {
  for (int i = 0; i < 256; ++i) {
    half small{static_cast<uint16_t>((i & 0x80) << 8 | (i & 0x7f) << 7)};
    values[i] = p.codes == p.integers8   ? i
                : p.codes == p.integers4 ? NIBBLES<true>[i & 15]
                : p.codes == p.e2m1      ? NIBBLES<false>[i & 15]
                : E4m3<Floats>::is_nan(i) ? __builtin_nanf("")
                                          : to_float(small) * E4m3<Floats>::FACTOR;
  }
}

// Rows [begin, end) of weights as floats.
void widen_weights(const QuantizedMatmul& p, int64_t begin, int64_t end, float* to) {
  int64_t padded = p.k / p.group + W;
  auto* factors = static_cast<float*>(scratch(FACTORS, 8 * padded));
  float values[256];
  list_values(p, values);
  for (int64_t row = begin; row < end; ++row, to += p.k) {
    widen_row(p, p.scales, p.scaling == p.floating, row, factors);
    memset(factors + padded, 0, 4 * padded);
    if (p.biases) {
      widen_row(p, p.biases, true, row, factors + padded);
    }
    const uint8_t* w = p.w + row * (p.k * bits(p) / 8);
    for (int64_t g = 0; g < p.k / p.group; ++g) {
      float factor = factors[g], bias = factors[padded + g];
      float* here = to + g * p.group;
      if (bits(p) == 4) {
        for (int64_t i = 0; i < p.group; i += 2, ++w) {
          here[i] = values[*w & 15] * factor + bias;
          here[i + 1] = values[*w >> 4] * factor + bias;
        }
      } else {
        for (int64_t i = 0; i < p.group; ++i, ++w) {
          here[i] = values[*w] * factor + bias;
        }
      }
    }
  }
}

template <class T>
void many_rows(const QuantizedMatmul& p) {
  auto* x = static_cast<float*>(scratch(X, 4 * p.m * p.k));
  for (int64_t r = 0; r < p.m; ++r) {
    for (int64_t i = 0; i < p.k; ++i) {
      x[r * p.k + i] = to_float(static_cast<const T*>(p.x)[r * p.x_row + i * p.x_k]);
    }
  }
  int64_t chunk = max(64, WIDE / p.k);
  auto* weights = static_cast<float*>(scratch(WEIGHTS, 4 * min(chunk, p.n) * p.k));
  auto* products = static_cast<float*>(scratch(PRODUCTS, 4 * p.m * min(chunk, p.n)));
  constexpr int64_t START = 0;
  for (int64_t first = 0; first < p.n; first += chunk) {
    int64_t columns = min(chunk, p.n - first);
    parallel(columns, 16, [&](int64_t begin, int64_t end) {
      widen_weights(p, first + begin, first + end, weights + begin * p.k);
    });
    matmul({Type::f32, x, weights, nullptr, products, p.m, columns, p.k, p.k, 1, 1, p.k, 1, &START,
            &START});
    for (int64_t r = 0; r < p.m; ++r) {
      T* out = static_cast<T*>(p.out) + r * p.n + first;
      const float* from = products + r * columns;
      for (int64_t c = 0; c < columns; c += W) {
        int64_t left = columns - c;
        if (left >= W) {
          store(out + c, load(from + c));
        } else {
          store(out + c, load(from + c, left), left);
        }
      }
    }
  }
}

}  // namespace

void quantized_matmul(const QuantizedMatmul& p) {
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    using Words = typename WordsOf<T>::Type;
    if (p.m > FEW_ROWS) {
      many_rows<T>(p);
    } else if (p.codes == p.integers4) {
      Few<T, Nibbles<Words, true>, Words, true>(p).compute();
    } else if (p.codes == p.e2m1) {
      Few<T, Nibbles<Words, false>, Words, true>(p).compute();
    } else if (p.codes == p.integers8) {
      Few<T, Integers, Floats, false>(p).compute();
    } else {
      Few<T, E4m3<Words>, Words, false>(p).compute();
    }
  });
}

}  // namespace torchmlx::ISA
