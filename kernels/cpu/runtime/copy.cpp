#include "runtime/copy.h"

#include <atomic>
#include <cstring>

#include "runtime/pool.h"

namespace torchmlx {
namespace {

// Items of a piece that one thread copies.
constexpr int64_t GRAIN = 1 << 14;

template <class T>
void copy_row(T* out, const T* x, int64_t n, int64_t stride) {
  if (stride == 1) {
    std::memcpy(out, x, n * sizeof(T));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    out[i] = x[i * stride];
  }
}

template <class T>
void copy_items(const Copy& p) {
  int last = static_cast<int>(p.shape.size()) - 1;
  int64_t n = last < 0 ? 1 : p.shape[last], stride = last < 0 ? 1 : p.strides[last], rows = 1;
  for (int d = 0; d < last; ++d) {
    rows *= p.shape[d];
  }
  if (n == 0) {
    return;
  }
  parallel(rows, GRAIN / n + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t at = 0, rest = row;
      for (int d = last - 1; d >= 0; --d) {
        at += rest % p.shape[d] * p.strides[d];
        rest /= p.shape[d];
      }
      copy_row(static_cast<T*>(p.out) + row * n, static_cast<const T*>(p.x) + at, n, stride);
    }
  });
}

}  // namespace

void copy(const Copy& p) {
  switch (p.item) {
    case 1:
      return copy_items<uint8_t>(p);
    case 2:
      return copy_items<uint16_t>(p);
    case 4:
      return copy_items<uint32_t>(p);
    default:
      return copy_items<uint64_t>(p);
  }
}

uint64_t read_all(const void* x, size_t bytes) {
  auto* words = static_cast<const uint64_t*>(x);
  std::atomic<uint64_t> total{0};
  parallel(bytes / 8, 1 << 16, [&](int64_t begin, int64_t end) {
    uint64_t sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      sum += words[i];
    }
    total += sum;
  });
  return total;
}

}  // namespace torchmlx
