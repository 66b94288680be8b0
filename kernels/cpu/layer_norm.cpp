// Rows of mean 0 and variance 1, then a weight and a bias; statistics in float32.
#include "layer_norm.h"

#include "simd.h"

namespace torchmlx::ISA {
namespace {

// Values below which threads cost more than they bring.
constexpr int64_t SMALL = 1 << 14;

// The sum over a row of f(value), where `f` makes 0 of what is beyond the row's end.
template <class T, class F>
INLINE float total(const T* x, int64_t n, const F& f) {
  vf sums[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    for (int j = 0; j < 4; ++j) {
      sums[j] += f(load(x + i + j * W));
    }
  }
  for (; i + W <= n; i += W) {
    sums[0] += f(load(x + i));
  }
  float result = sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  for (; i < n; ++i) {
    result += f(splat(to_float(x[i])))[0];
  }
  return result;
}

// x times a factor plus a term: vectors of them (`each`), or one for all.
template <class T>
void scale(const T* x, T* out, int64_t n, const float* factors, const float* terms, bool each) {
  vf factor = splat(*factors), term = splat(*terms);
  for (int64_t i = 0; i < n; i += W) {
    int64_t left = n - i;
    if (each) {
      factor = left >= W ? load(factors + i) : load(factors + i, left);
      term = left >= W ? load(terms + i) : load(terms + i, left);
    }
    if (left >= W) {
      store(out + i, load(x + i) * factor + term);
    } else {
      store(out + i, load(x + i, left) * factor + term, left);
    }
  }
}

// The parameter as floats; `missing` where there is none.
const float* widened(const LayerNorm& p, const void* parameter, float missing, float* to) {
  int64_t count = p.n / p.inner * p.groups;
  with_type(p.weight_type, [&](auto zero) {
    auto* from = static_cast<const decltype(zero)*>(parameter);
    for (int64_t i = 0; i < count; ++i) {
      to[i] = from ? to_float(from[i]) : missing;
    }
  });
  return to;
}

template <class T>
class Rows {
 public:
  explicit Rows(const LayerNorm& p) : p_(p), channels_(p.n / p.inner) {
    auto* memory = static_cast<float*>(scratch(0, 8 * channels_ * p.groups));
    weight_ = widened(p, p.weight, 1.0f, memory);
    bias_ = widened(p, p.bias, 0.0f, memory + channels_ * p.groups);
  }

  void compute() {
    parallel(p_.rows, SMALL / p_.n + 1, [&](int64_t begin, int64_t end) {
      auto* memory = static_cast<float*>(scratch(1, 8 * channels_));
      for (int64_t row = begin; row < end; ++row) {
        one(row, memory, memory + channels_);
      }
    });
  }

 private:
  void one(int64_t row, float* factors, float* terms) const {
    auto* x = static_cast<const T*>(p_.x) + row * p_.n;
    T* out = static_cast<T*>(p_.out) + row * p_.n;
    float count = static_cast<float>(p_.n);
    float mean = total(x, p_.n, [](vf value) INLINE_LAMBDA { return value; }) / count;
    float squares = total(x, p_.n, [mean](vf value) INLINE_LAMBDA {
      vf apart = value - mean;
      return apart * apart;
    });
    float factor = 1.0f / __builtin_sqrtf(squares / count + p_.eps);
    int64_t first = row % p_.groups * channels_;
    for (int64_t c = 0; c < channels_; ++c) {
      factors[c] = factor * weight_[first + c];
      terms[c] = bias_[first + c] - mean * factors[c];
    }
    if (p_.inner == 1) {
      scale(x, out, p_.n, factors, terms, true);
      return;
    }
    for (int64_t c = 0; c < channels_; ++c) {
      scale(x + c * p_.inner, out + c * p_.inner, p_.inner, factors + c, terms + c, false);
    }
  }

  const LayerNorm& p_;
  int64_t channels_;  // of a row
  const float* weight_;
  const float* bias_;
};

}  // namespace

void layer_norm(const LayerNorm& p) {
  if (p.rows * p.n == 0) {
    return;
  }
  with_type(p.type, [&](auto zero) { Rows<decltype(zero)>(p).compute(); });
}

}  // namespace torchmlx::ISA
