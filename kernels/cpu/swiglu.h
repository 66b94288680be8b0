#pragma once

#include "matmul.h"

namespace torchmlx {

// silu(a @ gate) * (a @ up); both products are of one shape, gate's out is the result.
struct Swiglu {
  Matmul gate, up;
  bool few;  // both are of few rows, and up.out is not used; else it holds a product meanwhile
};

KERNEL(swiglu, Swiglu)

}  // namespace torchmlx
