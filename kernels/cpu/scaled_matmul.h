#pragma once

#include "kernel.h"

namespace torchmlx {

// out[m, n] = sum over k of x[m, k] * x_scale * w[n, k] * scale, plus bias[n]; x and w are e4m3
// codes in contiguous rows. x has one scale, or one for each row and x_length codes along k.
// Weights' scales are fp8_matmul's.
struct ScaledMatmul {
  Type out_type;
  bool codes;  // out is e4m3 codes instead
  Type x_scale_type, scale_type, bias_type;
  const uint8_t* x;
  const uint8_t* w;
  const void* x_scale;
  const void* scale;
  const void* bias;  // may be null
  void* out;
  int64_t m, n, k;
  int64_t x_scale_row, x_length;  // scales of a row, 0 if one serves all; codes that share one
  int64_t scales, scale_height, scale_row, scale_length;
};

KERNEL(scaled_matmul, ScaledMatmul)

}  // namespace torchmlx
