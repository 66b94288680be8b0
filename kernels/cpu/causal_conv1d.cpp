// Depthwise causal convolution: a thread slides over times of some channels with the window in
// registers, computing in float32.
#include "causal_conv1d.h"

#include "functions.h"

namespace torchmlx::ISA {
namespace {

// Products that a thread should have at least.
constexpr int64_t SMALL = 1 << 16;

constexpr int64_t MOST_TAPS = 8;

template <class T>
INLINE vf some(const T* p, int64_t lanes) {
  return lanes == W ? load(p) : load(p, lanes);
}

template <class T>
INLINE void put(T* p, vf v, int64_t lanes) {
  lanes == W ? store(p, v) : store(p, v, lanes);
}

// All times of `lanes` channels from `channel` on.
template <class T>
class Channels {
 public:
  Channels(const CausalConv1d& p, int64_t row, int64_t channel)
      : p_(p), row_(row), channel_(channel), lanes_(min(W, p.channels - channel)) {
    padded_ = p.padding ? p.padding[row] : 0;
    auto* w = static_cast<const T*>(p.w) + channel * p.taps;
    for (int64_t j = 0; j < p.taps; ++j) {
      weights_[j] = vf{};
      for (int64_t lane = 0; lane < lanes_; ++lane) {
        weights_[j][lane] = to_float(w[lane * p.taps + j]);
      }
    }
    if (p.bias) {
      bias_ = some(static_cast<const T*>(p.bias) + channel, lanes_);
    }
  }

  void compute() const {
    int64_t kept = p_.taps - 1;
    vf window[MOST_TAPS];
    for (int64_t j = 0; j < kept; ++j) {
      window[j] = input(j - kept);
    }
    T* out = static_cast<T*>(p_.out) + row_ * p_.tokens * p_.channels + channel_;
    for (int64_t t = 0; t < p_.tokens; ++t) {
      window[kept] = input(t);
      vf sum = bias_;
      for (int64_t j = 0; j <= kept; ++j) {
        sum += window[j] * weights_[j];
      }
      put(out + t * p_.channels, p_.silu ? sum / (1.0f + exponential(-sum)) : sum, lanes_);
      for (int64_t j = 0; j < kept; ++j) {
        window[j] = window[j + 1];
      }
    }
    T* next = static_cast<T*>(p_.next) + row_ * kept * p_.channels + channel_;
    for (int64_t j = 0; j < kept; ++j) {
      put(next + j * p_.channels, window[j], lanes_);
    }
  }

 private:
  INLINE_LAMBDA vf input(int64_t t) const {
    if (t < 0) {
      int64_t at = row_ * (p_.taps - 1) + p_.taps - 1 + t;
      auto* state = static_cast<const T*>(p_.state);
      return state ? some(state + at * p_.channels + channel_, lanes_) : vf{};
    }
    auto* x = static_cast<const T*>(p_.x) + row_ * p_.x_strides[0] + t * p_.x_strides[1];
    return t < padded_ ? vf{} : some(x + channel_, lanes_);
  }

  const CausalConv1d& p_;
  int64_t row_, channel_, lanes_, padded_;
  vf weights_[MOST_TAPS], bias_ = {};
};

}  // namespace

void causal_conv1d(const CausalConv1d& p) {
  int64_t groups = divide_up(p.channels, W), work = W * p.taps * (p.tokens + 1);
  with_type(p.type, [&](auto zero) {
    parallel(p.batch * groups, SMALL / work + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Channels<decltype(zero)>(p, i / groups, i % groups * W).compute();
      }
    });
  });
}

}  // namespace torchmlx::ISA
