// A convolution as plain data.
#pragma once

#include "kernel.h"

namespace torchmlx {

// result[b, o, n] = sum over taps t and channels c of x[b, o * stride + t * dilation - before, c] *
// weights[n, t, c], plus bias[n], over three axes: frames, rows, columns; summed in float32, rounded
// once. Outside of x are zeros, but for the `cached` frames before its first. x [batch, in,
// channels] and cache [batch, cached, in[1], in[2], channels] are contiguous. Channels and columns
// fall into `groups` that do not meet.
struct Convolution {
  Type type;
  const void* x;
  const void* cache;  // may be null
  const void* weights;
  const void* bias;  // may be null
  void* result;
  int64_t batch, cached, channels, columns, groups;
  int64_t in[3], kernel[3], out[3], stride[3], dilation[3], before[3];
  bool upsample;  // rows and columns of x are doubled first; `before` counts doubled ones
  // In elements: weights of a group, of one of its columns, a tap and one of its channels; results
  // of a batch, of an index, whose columns are contiguous.
  int64_t w_group, w_column, w_tap[3], w_channel;
  int64_t result_batch, result_step[3];
};

KERNEL(convolution, Convolution)

}  // namespace torchmlx
