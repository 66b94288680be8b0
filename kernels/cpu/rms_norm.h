#pragma once

#include "kernel.h"

namespace torchmlx {

// out = h / sqrt(mean(h^2) + eps) * (offset + weight) for rows of n, contiguous. h is x, or with a
// residual total = x + residual, rounded. With `silu` the result is times its sigmoid.
struct RmsNorm {
  Type type, weight_type;
  const void* x;
  const void* weight;    // may be null
  const void* residual;  // may be null
  void* out;
  void* total;
  int64_t rows, n;
  float eps, offset;
  bool silu;
};

KERNEL(rms_norm, RmsNorm)

}  // namespace torchmlx
