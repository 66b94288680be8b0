#pragma once

#include "convolution.h"

namespace torchmlx {

// The gradient of a convolution's weights from that of its result: result[n, t, c] = sum over b and
// o of gradient[b, o, n] * x[b, o * stride + t * dilation - before, c]; summed in float32, rounded
// once. `of` says what the convolution is: its weights' strides are those of the result here, and of
// its pointers only x and cache count. gradient [batch, out, columns] is contiguous.
struct ConvWeights {
  Convolution of;
  const void* gradient;
  void* result;
};

KERNEL(conv_weights, ConvWeights)

}  // namespace torchmlx
