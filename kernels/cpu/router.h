#pragma once

#include "kernel.h"

namespace torchmlx {

// The k largest of each row's probabilities, the largest first: softmax of logits [rows, experts],
// divided by the sum of the chosen if `normalise`. weights and indices [rows, k]; all contiguous.
struct Router {
  Type type;
  const void* logits;
  void* weights;
  int32_t* indices;
  int64_t rows, experts, k;
  bool normalise;
};

KERNEL(router, Router)

}  // namespace torchmlx
