// Nodes of MLX's graph; nothing for dtypes that the kernels do not compute. The shapes fit.
#pragma once

#include "primitive.h"

namespace torchmlx {

// Softmax along `axis`, not negative.
std::optional<mx::array> softmax(const mx::array& x, int axis);
std::optional<mx::array> log_softmax(const mx::array& x, int axis);

// The norm of x; with a residual, the norm of their sum and the sum.
std::optional<std::vector<mx::array>> rms_norm(const mx::array& x,
                                               const std::optional<mx::array>& weight,
                                               const std::optional<mx::array>& residual, float eps,
                                               float offset);

}  // namespace torchmlx
