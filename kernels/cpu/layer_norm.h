#pragma once

#include "kernel.h"

namespace torchmlx {

// out = (x - mean) / sqrt(variance + eps) * weight + bias for rows of n, contiguous. Along a row a
// weight serves `inner` values in turn; after `groups` rows the weights begin anew.
struct LayerNorm {
  Type type, weight_type;
  const void* x;
  const void* weight;  // may be null
  const void* bias;    // may be null; of the weight's type
  void* out;
  int64_t rows, n, inner, groups;
  float eps;
};

KERNEL(layer_norm, LayerNorm)

}  // namespace torchmlx
