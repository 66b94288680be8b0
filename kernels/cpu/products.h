// Nodes of MLX's graph; nothing for dtypes that the kernels do not compute. The shapes fit.
#pragma once

#include "primitive.h"

namespace torchmlx {

// x [..., k] @ w [n, k].T + bias [n].
std::optional<mx::array> linear(const mx::array& x, const mx::array& w,
                                const std::optional<mx::array>& bias);

// a [..., m, k] @ b [..., k, n]; leading axes broadcast.
std::optional<mx::array> matmul(const mx::array& a, const mx::array& b);

}  // namespace torchmlx
