#pragma once

#include "matmul.h"

namespace torchmlx {

// Three products of the same a, such as queries, keys and values; their batches are of one.
struct Projections {
  Matmul parts[3];
};

KERNEL(projections, Projections)

}  // namespace torchmlx
