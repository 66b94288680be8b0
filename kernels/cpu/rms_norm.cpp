// Root mean square norm of rows, perhaps of a sum with a residual; statistics in float32.
#include "rms_norm.h"

#include "functions.h"

namespace torchmlx::ISA {
namespace {

// Values below which threads cost more than they bring.
constexpr int64_t SMALL = 1 << 14;

// `total` is the rounded sum, which is then what the norm is of; without a residual it is x.
template <class T>
void add(const T* x, const T* residual, T* total, int64_t n) {
  for (int64_t i = 0; i < n; i += W) {
    int64_t left = n - i;
    if (left >= W) {
      store(total + i, load(x + i) + load(residual + i));
    } else {
      store(total + i, load(x + i, left) + load(residual + i, left), left);
    }
  }
}

template <class T>
float mean_square(const T* x, int64_t n) {
  vf sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    for (int j = 0; j < 4; ++j) {
      vf value = load(x + i + j * W);
      sums[j] += value * value;
    }
  }
  for (; i < n; i += W) {
    vf value = n - i >= W ? load(x + i) : load(x + i, n - i);
    sums[0] += value * value;
  }
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(n);
}

template <class T>
void scale(const RmsNorm& p, const T* x, const float* weight, float factor, T* out) {
  for (int64_t i = 0; i < p.n; i += W) {
    int64_t count = min(W, p.n - i);
    vf value = (count == W ? load(x + i) : load(x + i, count)) * factor;
    if (weight) {
      value = value * (count == W ? load(weight + i) : load(weight + i, count));
    }
    if (p.silu) {
      value = value / (exponential(-value) + 1.0f);
    }
    count == W ? store(out + i, value) : store(out + i, value, count);
  }
}

// The weight plus the offset, as floats.
const float* widen_weight(const RmsNorm& p) {
  if (!p.weight) {
    return nullptr;
  }
  auto* wide = static_cast<float*>(scratch(0, p.n * sizeof(float)));
  with_type(p.weight_type, [&](auto zero) {
    auto* weight = static_cast<const decltype(zero)*>(p.weight);
    for (int64_t i = 0; i < p.n; ++i) {
      wide[i] = p.offset + to_float(weight[i]);
    }
  });
  return wide;
}

template <class T>
void all_rows(const RmsNorm& p) {
  const float* weight = widen_weight(p);
  parallel(p.rows, SMALL / p.n + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t at = row * p.n;
      auto* x = static_cast<const T*>(p.x) + at;
      if (p.residual) {
        T* total = static_cast<T*>(p.total) + at;
        add(x, static_cast<const T*>(p.residual) + at, total, p.n);
        x = total;
      }
      float factor = 1.0f / __builtin_sqrtf(mean_square(x, p.n) + p.eps);
      scale(p, x, weight, factor, static_cast<T*>(p.out) + at);
    }
  });
}

}  // namespace

void rms_norm(const RmsNorm& p) {
  if (p.rows * p.n == 0) {
    return;
  }
  with_type(p.type, [&](auto zero) { all_rows<decltype(zero)>(p); });
}

}  // namespace torchmlx::ISA
