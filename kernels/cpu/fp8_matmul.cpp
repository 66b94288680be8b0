// Products with e4m3 weights: few rows are bound by reading the codes, more are multiplied as any
// matrix whose strips are widened first.
#include "fp8_matmul.h"

#include "dots.h"
#include "panel.h"
#include "tasks.h"

namespace torchmlx::ISA {
namespace {

enum { SCALES = 6, X };

// Rows up to which reading codes takes longer than multiplying them.
constexpr int64_t FEW_ROWS = 8;

// What Panel multiplies by. Floats take the scales at once; pairs of bf16 would round them, so their
// sums do.
template <class Words>
struct Codes {
  using Format = ByLanes<E4m3<Words>, Words>;
  const uint8_t* w;
  int64_t w_row, k;
  Scales scales;

  int64_t block() const {
    return scales.length < k ? scales.length : PANEL_VALUES * Words::VALUES;
  }

  class Strips {
   public:
    Strips(const Codes& from, int64_t column, int64_t columns)
        : from_(from), w_(from.w + column * from.w_row), columns_(columns) {
      for (int64_t c = 0; c < COLUMNS; ++c) {
        scales_[c] = from.scales.of(column + min(c, columns - 1));
      }
    }

    void pack(uint32_t* to, int64_t begin, int64_t count, int64_t steps) {
      for (int64_t c = 0; c < COLUMNS; ++c) {
        factors_[c] = scales_[c][begin / from_.scales.length] * Format::FACTOR;
      }
      auto read_step = [&](int64_t i, int64_t at, vf (&parts)[1]) {
        const uint8_t* here = w_ + i * from_.w_row + begin + at;
        if (count - at < Format::STEP) {
          read_rest<Format>(here, count - at, parts);
        } else {
          Format::read(here, parts);
        }
        if (Words::VALUES == 1) {
          parts[0] *= factors_[i];
        }
      };
      pack_codes<Format, Words>(to, columns_, count, steps, read_step);
    }

    void add(float* sums, int64_t, const PackedBlock<Words>& packed, bool resume) const {
      if constexpr (Words::VALUES == 1) {
        packed.multiply(0, packed.steps, sums, resume);
      } else {
        add_scaled(sums, packed, 0, packed.steps, factors_, resume,
                   [](vf value, int64_t, int64_t) INLINE_LAMBDA { return value; });
      }
    }

    bool spoils(int64_t c) const {
      if constexpr (Format::SPECIAL) {
        return Format::has_nan(w_ + c * from_.w_row, from_.k);
      }
      return false;
    }

   private:
    static constexpr int COLUMNS = PANEL_COLUMNS<Words>;
    const Codes& from_;
    const uint8_t* w_;
    int64_t columns_;
    const float* scales_[COLUMNS];
    float factors_[COLUMNS];
  };
};

template <class T, class Out>
class Product {
  using Words = typename WordsOf<T>::Type;
  using Format = LongE4m3<Words>;

 public:
  Product(const Fp8Matmul& p, const float* scale)
      : p_(p), x_(static_cast<const T*>(p.x)), out_(static_cast<Out*>(p.out)),
        bias_(static_cast<const Out*>(p.bias)),
        scales_{scale, p.scale_height, p.scale_row, min(p.scale_length, p.k)} {}

  void few_rows() {
    const uint32_t* x = arrange_rows<Format, Words>(X, x_, p_.x_row, p_.x_k, p_.m, p_.k);
    const uint32_t* rows[FEW_ROWS];
    for (int64_t r = 0; r < p_.m; ++r) {
      rows[r] = x + r * arranged<Format>(p_.k);
    }
    parallel(p_.n, task_rows(p_.n, p_.k), [&](int64_t begin, int64_t end) {
      float sums[MOST_COLUMNS * MOST_ROWS];
      for (; begin < end; begin += MOST_COLUMNS) {
        int64_t stop = min(begin + MOST_COLUMNS, end);
        for (int64_t row = 0; row < p_.m; row += MOST_ROWS) {
          int64_t count = min(MOST_ROWS, p_.m - row);
          all_dots<Format, Words>(p_.k, rows + row, count, p_.w, p_.w_row, begin, stop, scales_,
                                  sums);
          for (int64_t r = 0; r < count; ++r) {
            keep(out_ + (row + r) * p_.n, begin, stop, sums + r);
          }
        }
      }
    });
  }

  // Every MOST_ROWS-th of sums, plus bias.
  void keep(Out* out, int64_t begin, int64_t end, const float* sums) const {
    for (; begin < end; begin += AT_ONCE) {
      int64_t count = min(AT_ONCE, end - begin);
      float values[AT_ONCE];
      for (int64_t i = 0; i < count; ++i, sums += MOST_ROWS) {
        values[i] = *sums + (bias_ ? to_float(bias_[begin + i]) : 0.0f);
      }
      store_all(out + begin, values, count);
    }
  }

  void many_rows() {
    with_panel_words<T>([&](auto words) {
      using Words = decltype(words);
      Codes<Words> weights{p_.w, p_.w_row, p_.k, scales_};
      Rounded<Out> keep{out_, bias_, p_.n};
      Panel<T, Words, Codes<Words>, Rounded<Out>> panel(x_, p_.x_row, p_.x_k, p_.m, p_.n, p_.k,
                                                        weights, keep);
      panel.compute();
    });
  }

 private:
  const Fp8Matmul& p_;
  const T* x_;
  Out* out_;
  const Out* bias_;
  Scales scales_;
};

const float* wide_scales(const Fp8Matmul& p) {
  if (p.scale_type == Type::f32) {
    return static_cast<const float*>(p.scale);
  }
  auto* wide = static_cast<float*>(scratch(SCALES, 4 * p.scales));
  with_type(p.scale_type, [&](auto zero) {
    auto* scale = static_cast<const decltype(zero)*>(p.scale);
    for (int64_t i = 0; i < p.scales; ++i) {
      wide[i] = to_float(scale[i]);
    }
  });
  return wide;
}

template <class T, class Out>
void multiply(const Fp8Matmul& p, const float* scale) {
  Product<T, Out> product(p, scale);
  p.m <= FEW_ROWS ? product.few_rows() : product.many_rows();
}

}  // namespace

void fp8_matmul(const Fp8Matmul& p) {
  if (p.m == 0 || p.n == 0) {
    return;
  }
  const float* scale = wide_scales(p);
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (is_bfloat<T>) {
      if (p.sums) {
        return multiply<T, float>(p, scale);
      }
    }
    multiply<T, T>(p, scale);
  });
}

}  // namespace torchmlx::ISA
