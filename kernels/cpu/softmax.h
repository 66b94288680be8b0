#pragma once

#include "kernel.h"

namespace torchmlx {

// Softmax, or its logarithm, along the middle axis of [outer, n, inner], contiguous.
struct Softmax {
  Type type;
  const void* x;
  void* out;
  int64_t outer, n, inner;
  bool logarithm;
};

KERNEL(softmax, Softmax)

}  // namespace torchmlx
