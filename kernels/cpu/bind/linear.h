// Rows of x times weights [n, k], as nodes describe it to kernels.
#pragma once

#include "bind/node.h"
#include "matmul.h"

namespace torchmlx {

// The product of the axes of x but the last `inner`.
inline int64_t rows_of(const mx::array& x, int inner) {
  int64_t rows = 1;
  for (int d = 0; d < static_cast<int>(x.ndim()) - inner; ++d) {
    rows *= x.shape(d);
  }
  return rows;
}

// x [..., k], whose rows follow one another, times w [n, k], plus a contiguous bias [n].
inline Matmul linear_problem(const mx::array& x, const mx::array& w,
                             const std::optional<mx::array>& bias, mx::array& out) {
  static constexpr int64_t FIRST[1] = {0};
  return {
      .type = *type_of(x),
      .a = x.data<void>(),
      .b = w.data<void>(),
      .bias = bias ? bias->data<void>() : nullptr,
      .out = out.data<void>(),
      .m = rows_of(x, 1),
      .n = w.shape(0),
      .k = w.shape(1),
      .a_row = *row_stride(x, 1),
      .a_k = x.strides(-1),
      .b_k = w.strides(1),
      .b_column = w.strides(0),
      .batch = 1,
      .a_starts = FIRST,
      .b_starts = FIRST,
  };
}

}  // namespace torchmlx
