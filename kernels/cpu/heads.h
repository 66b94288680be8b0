// Nodes of MLX's graph; nothing for dtypes that the kernels do not compute. The shapes fit.
#pragma once

#include "primitive.h"

namespace torchmlx {

// softmax(q @ k.T * scale + mask) @ v, with a 4-d mask that broadcasts, lengths [B] in int32, and
// the result times the gate's sigmoid; see kernels/attention.py.
std::optional<mx::array> attention(const mx::array& q, const mx::array& k, const mx::array& v,
                                   const std::optional<mx::array>& mask,
                                   const std::optional<mx::array>& lengths,
                                   const std::optional<mx::array>& gate, bool causal,
                                   std::optional<int> window, float scale);

}  // namespace torchmlx
