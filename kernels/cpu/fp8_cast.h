#pragma once

#include "kernel.h"

namespace torchmlx {

// Casts `count` values to e4m3 codes, or codes to values of `type`; contiguous.
struct Fp8Cast {
  Type type;
  bool narrows;  // to codes
  const void* x;
  void* out;
  int64_t count;
};

KERNEL(fp8_cast, Fp8Cast)

}  // namespace torchmlx
