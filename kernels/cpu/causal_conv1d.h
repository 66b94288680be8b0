#pragma once

#include "kernel.h"

namespace torchmlx {

// out[t] = bias + sum over j of w[j] x[t - taps + 1 + j] for each channel, then SiLU if asked.
// x [batch, tokens, channels] with strides in elements for the first two axes; the rest contiguous:
// w [channels, taps], state and next [batch, taps - 1, channels], out as x. The inputs before x are
// the state, and the last taps - 1 inputs are next.
struct CausalConv1d {
  Type type;
  const void* x;
  const void* w;
  const void* state;       // may be null: zeros
  const void* bias;        // [channels], may be null
  const int32_t* padding;  // [batch], may be null: the first times of a row that count as zeros
  void* out;
  void* next;
  int64_t x_strides[2];
  int64_t batch, tokens, channels, taps;
  bool silu;
};

KERNEL(causal_conv1d, CausalConv1d)

}  // namespace torchmlx
