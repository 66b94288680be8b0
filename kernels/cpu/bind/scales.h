// How scales of e4m3 weights [experts, n, k] lie, as the kernels take them.
#pragma once

#include <cstdint>
#include <limits>

namespace torchmlx {

struct ScaleLayout {
  int64_t group = 0;  // from an expert's scales to the next one's
  int64_t count = 1;  // of an expert
  int64_t height, row = 0, length = std::numeric_limits<int64_t>::max();
};

// `rows` x `columns` scales for each expert: 1 x 1, n x 1, or those of square blocks.
inline ScaleLayout layout_of(bool shared, int64_t rows, int64_t columns, int64_t n, int64_t block) {
  ScaleLayout layout{.height = n};
  if (rows * columns > 1) {
    bool outputs = rows == n && columns == 1;
    layout.height = outputs ? 1 : block;
    layout.row = columns;
    layout.length = outputs ? layout.length : block;
  }
  layout.count = rows * columns;
  layout.group = shared ? 0 : layout.count;
  return layout;
}

}  // namespace torchmlx
