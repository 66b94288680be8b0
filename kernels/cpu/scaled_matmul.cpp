// Products of e4m3 codes on both sides: those of x become bf16, or floats where scales along k
// multiply them, and fp8_matmul does the rest but for what each row's sums are multiplied by.
#include "scaled_matmul.h"

#include "codes.h"
#include "fp8_matmul.h"

namespace torchmlx::ISA {
namespace {

// fp8_matmul uses others.
enum { WIDE = 0, SUMS };

// Rows that are multiplied at a time: their sums stay in the last-level cache.
constexpr int64_t ROWS_AT_ONCE = 1024;

// Codes that a thread should have.
constexpr int64_t SMALL = 1 << 14;

float value_at(Type type, const void* values, int64_t i) {
  float value = 0;
  with_type(type, [&](auto zero) {
    value = to_float(static_cast<const decltype(zero)*>(values)[i]);
  });
  return value;
}

// Rows [begin, end) of x times their scales along k, if there are several.
template <class T>
void widen_rows(const ScaledMatmul& p, int64_t begin, int64_t end, T* to) {
  for (int64_t row = begin; row < end; ++row, to += p.k) {
    const uint8_t* x = p.x + row * p.k;
    for (int64_t at = 0; at < p.k; at += W) {
      int64_t left = min(W, p.k - at);
      vf value = widen_codes(load_codes(x + at, left));
      if (p.x_scale_row > 1) {
        int64_t scale = row * p.x_scale_row + at / p.x_length;
        value *= value_at(p.x_scale_type, p.x_scale, scale);
      }
      left == W ? store(to + at, value) : store(to + at, value, left);
    }
  }
}

// sums times the row's scale, plus bias, as values or codes.
template <class T>
void finish(const ScaledMatmul& p, int64_t row, const float* sums) {
  float factor =
      p.x_scale_row > 1 ? 1.0f : value_at(p.x_scale_type, p.x_scale, row * p.x_scale_row);
  for (int64_t c = 0; c < p.n; c += W) {
    int64_t left = min(W, p.n - c), at = row * p.n + c;
    vf value = (left == W ? load(sums + c) : load(sums + c, left)) * factor;
    if (p.bias) {
      with_type(p.bias_type, [&](auto zero) {
        auto* bias = static_cast<const decltype(zero)*>(p.bias) + c;
        value += left == W ? load(bias) : load(bias, left);
      });
    }
    if (p.codes) {
      store_codes(static_cast<uint8_t*>(p.out) + at, narrow_codes(value), left);
    } else {
      T* out = static_cast<T*>(p.out) + at;
      left == W ? store(out, value) : store(out, value, left);
    }
  }
}

template <class T>
void some_rows(const ScaledMatmul& p, Type type, int64_t first, int64_t rows) {
  auto* x = static_cast<T*>(scratch(WIDE, sizeof(T) * rows * max(1, p.k)));
  auto* sums = static_cast<float*>(scratch(SUMS, 4 * rows * p.n));
  parallel(rows, SMALL / max(1, p.k) + 1, [&](int64_t begin, int64_t end) {
    widen_rows(p, first + begin, first + end, x + begin * p.k);
  });
  Fp8Matmul product{};
  product.type = type, product.scale_type = p.scale_type;
  product.x = x, product.w = p.w, product.scale = p.scale, product.out = sums;
  product.m = rows, product.n = p.n, product.k = p.k;
  product.x_row = p.k, product.x_k = 1, product.w_row = p.k;
  product.scales = p.scales, product.scale_height = p.scale_height;
  product.scale_row = p.scale_row, product.scale_length = p.scale_length;
  product.sums = true;
  fp8_matmul(product);
  parallel(rows, SMALL / max(1, p.n) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      with_type(p.out_type, [&](auto zero) {
        finish<decltype(zero)>(p, first + row, sums + row * p.n);
      });
    }
  });
}

}  // namespace

void scaled_matmul(const ScaledMatmul& p) {
  for (int64_t row = 0; row < p.m; row += ROWS_AT_ONCE) {
    int64_t rows = min(ROWS_AT_ONCE, p.m - row);
    if (p.x_scale_row > 1) {
      some_rows<float>(p, Type::f32, row, rows);
    } else {
      some_rows<bfloat>(p, Type::bf16, row, rows);
    }
  }
}

}  // namespace torchmlx::ISA
