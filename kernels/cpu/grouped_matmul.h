#pragma once

#include "kernel.h"

namespace torchmlx {

// Products of groups, which end at offs[0], offs[1], ..., clamped to [0, m] or [0, k].
// Rows of a are jagged: out[m, n] = a[m, k] @ b[group of the row]; rows of no group are zero.
// inner: k is jagged: out[group] = a[:, of the group] @ b[of the group, :].
struct GroupedMatmul {
  Type type;
  bool inner;
  const void* a;
  const void* b;
  const int32_t* offs;
  void* out;  // contiguous
  int64_t groups, m, n, k;
  int64_t a_row, a_k;
  int64_t b_group, b_k, b_column;
};

KERNEL(grouped_matmul, GroupedMatmul)

// The same with rows jagged and weights [groups, n, k] of e4m3 codes; a group's scales as in
// Fp8Matmul, `scale_group` from one group to the next.
struct Fp8Grouped {
  Type type, scale_type;
  const void* x;
  const uint8_t* w;
  const void* scale;
  const int32_t* offs;
  void* out;
  int64_t groups, m, n, k;
  int64_t x_row, x_k;
  int64_t scales, scale_group, scale_height, scale_row, scale_length;
};

KERNEL(fp8_grouped, Fp8Grouped)

}  // namespace torchmlx
