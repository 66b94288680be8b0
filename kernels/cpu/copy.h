// Copies of arrays with any strides into contiguous memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace torchmlx {

struct Copy {
  const void* x;
  void* out;
  size_t item;  // bytes: 1, 2, 4 or 8
  std::vector<int64_t> shape, strides;  // strides of x, in items
};

void copy(const Copy& p);

}  // namespace torchmlx
