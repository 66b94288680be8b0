#pragma once

#include "kernel.h"

namespace torchmlx {

// out[m, n] = sum over k of x[m, k] * w[n, k] * scale, plus bias[n]; w are e4m3 codes. Weight
// (n, k) has scale[n / scale_height * scale_row + k / scale_length].
struct Fp8Matmul {
  Type type, scale_type;
  const void* x;
  const uint8_t* w;
  const void* scale;
  const void* bias;  // may be null
  void* out;         // rows of n, contiguous; of floats for `sums`
  int64_t m, n, k;
  int64_t x_row, x_k;  // strides of x
  int64_t w_row;       // stride of w's rows, which are contiguous
  int64_t scales, scale_height, scale_row;
  int64_t scale_length;  // a multiple of 64, or at least k
  bool sums = false;     // not rounded, without bias; for bf16 or f32
};

KERNEL(fp8_matmul, Fp8Matmul)

}  // namespace torchmlx
