#pragma once

#include "kernel.h"

namespace torchmlx {

// out[t] = sum over s of weights[t, s] * down[e] @ (silu(gate[e] @ x[t]) * (up[e] @ x[t])) with
// e = indices[t, s]; an expert that does not exist adds nothing. All arrays are contiguous.
struct MoeDecode {
  // Scales of an expert's e4m3 weights as in Fp8Matmul, `group` from one expert to the next.
  struct Scaling {
    const void* values;
    int64_t count, group, height, row, length;  // count: of all experts
  };
  Type type, weights_type, scale_type;
  bool codes;            // gate_up and down are e4m3 codes with scales, else of `type`
  const void* x;         // [tokens, k]
  const void* gate_up;   // [experts, 2 inner, k]
  const void* down;      // [experts, k, inner]
  const int32_t* indices;  // [tokens, slots]
  const void* weights;
  void* out;
  int64_t tokens, slots, experts, inner, k;
  Scaling up_scale, down_scale;
};

KERNEL(moe_decode, MoeDecode)

}  // namespace torchmlx
