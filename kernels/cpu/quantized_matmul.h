#pragma once

#include "kernel.h"

namespace torchmlx {

// out[m, n] = sum over k of x[m, k] * (code * scale + bias), as MLX stores quantised weights: codes
// from the low bits of bytes to the high ones, a scale (and a bias) for each `group` along k.
struct QuantizedMatmul {
  enum Codes { integers4, integers8, e2m1, e4m3 };
  enum Scaling { floating, e8m0, e4m3_scales };
  Type type;
  Codes codes;
  Scaling scaling;
  Type scale_type;  // of floating scales and of biases
  const void* x;
  const uint8_t* w;    // [n, k] codes, contiguous
  const void* scales;  // [n, k / group], contiguous
  const void* biases;  // the same, or null
  void* out;           // rows of n, contiguous
  int64_t m, n, k, group;
  int64_t x_row, x_k;
};

KERNEL(quantized_matmul, QuantizedMatmul)

}  // namespace torchmlx
