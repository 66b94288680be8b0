// Copies of arrays with any strides into contiguous memory, and reading for its own sake.
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

// Reads `bytes` bytes on all threads, to measure how fast that is; returns something made of them.
uint64_t read_all(const void* x, size_t bytes);

}  // namespace torchmlx
