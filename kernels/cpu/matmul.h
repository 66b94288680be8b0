#pragma once

#include "kernel.h"

namespace torchmlx {

// out[m, n] = sum over k of a[m, k] * b[k, n], plus bias[n]; summed in float32, rounded once.
struct Matmul {
  Type type;
  const void* a;
  const void* b;
  const void* bias;  // may be null
  void* out;         // rows of n, contiguous
  int64_t m, n, k;
  int64_t a_row, a_k;  // strides of a
  int64_t b_k, b_column;
  // Products of a batch: where each starts, in elements; their outputs follow one another.
  int64_t batch;
  const int64_t* a_starts;
  const int64_t* b_starts;
};

KERNEL(matmul, Matmul)

}  // namespace torchmlx
