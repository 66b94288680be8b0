// The largest probabilities of each row. Softmax keeps the order of logits, so these are compared.
#include "router.h"

#include "functions.h"

namespace torchmlx::ISA {
namespace {

// Logits that a thread should have at least.
constexpr int64_t SMALL = 1 << 13;

enum { VALUES };

// The sum of e^(x - most); x is followed by -inf up to a whole vector.
float total(const float* x, int64_t n, float most) {
  vf sums = {};
  for (int64_t i = 0; i < n; i += W) {
    vf e = exponential(load(x + i) - most);
    sums += e;
  }
  return sum(sums);
}

template <class T>
class Rows {
 public:
  explicit Rows(const Router& p) : p_(p), width_(divide_up(p.experts, W) * W) {
    values_ = static_cast<float*>(scratch(VALUES, (width_ + p.k) * sizeof(float)));
    chosen_ = values_ + width_;
  }

  void one(int64_t row) const {
    auto* logits = static_cast<const T*>(p_.logits) + row * p_.experts;
    T* weights = static_cast<T*>(p_.weights) + row * p_.k;
    int32_t* indices = p_.indices + row * p_.k;
    float most = widen_row(logits);
    float sum = total(values_, p_.experts, most), shares = 0;
    bool poisoned = sum != sum;  // by NaN, by inf, or as all are -inf
    if (poisoned) {
      for (int64_t i = 0; i < p_.k; ++i) {
        indices[i] = static_cast<int32_t>(i);
        chosen_[i] = sum;
      }
    } else {
      choose(indices);
      for (int64_t i = 0; i < p_.k; ++i) {
        chosen_[i] = exponential(splat(chosen_[i] - most))[0];
        shares += chosen_[i];
      }
    }
    for (int64_t i = 0; i < p_.k; ++i) {
      vf weight = splat(chosen_[i] / (p_.normalise ? shares : sum));
      store(weights + i, weight, 1);
    }
  }

 private:
  // The row as floats; returns the largest.
  float widen_row(const T* x) const {
    constexpr float LOWEST = -__builtin_inff();
    vf most = splat(LOWEST);
    for (int64_t i = 0; i < p_.experts; i += W) {
      int64_t left = p_.experts - i;
      vf value = left >= W ? load(x + i) : load_or(x + i, left, LOWEST);
      store(values_ + i, value);
      most = larger(value, most);
    }
    return largest(most);
  }

  // The k largest and their places; of equal ones the first.
  void choose(int32_t* indices) const {
    int64_t count = 0;
    for (int64_t i = 0; i < p_.experts; ++i) {
      float value = values_[i];
      if (count == p_.k && !(value > chosen_[p_.k - 1])) {
        continue;
      }
      int64_t at = count < p_.k ? count++ : p_.k - 1;
      for (; at > 0 && value > chosen_[at - 1]; --at) {
        chosen_[at] = chosen_[at - 1];
        indices[at] = indices[at - 1];
      }
      chosen_[at] = value;
      indices[at] = static_cast<int32_t>(i);
    }
  }

  const Router& p_;
  int64_t width_;
  float* values_;
  float* chosen_;
};

}  // namespace

void router(const Router& p) {
  with_type(p.type, [&](auto zero) {
    parallel(p.rows, SMALL / max(1, p.experts) + 1, [&](int64_t begin, int64_t end) {
      Rows<decltype(zero)> rows(p);
      for (int64_t row = begin; row < end; ++row) {
        rows.one(row);
      }
    });
  });
}

}  // namespace torchmlx::ISA
