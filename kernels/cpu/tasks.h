// How loops over the rows of a matrix that is read once are shared out, and how results are kept.
#pragma once

#include "simd.h"

namespace torchmlx::ISA {

// Bytes of a matrix of `total` bytes that a task reads: at least enough to hide the cost of handing
// it out; more of a large one, as each stretch begins slowly (16 MiB by 2 threads: 28 GB/s in tasks
// of 64 KiB, 32 in those of 256; AMD EPYC, Zen 4, 2026-12-03), but so little that threads end
// together.
INLINE int64_t task_bytes(int64_t total) {
  return max(64 << 10, min(512 << 10, total / (32 * threads())));
}

// Rows of a task, of `rows` rows of so many bytes.
INLINE int64_t task_rows(int64_t rows, int64_t bytes) {
  return max(1, task_bytes(rows * bytes) / max(1, bytes));
}

// Rows whose results a loop keeps at a time: stores of single values of half types take as long as
// reading half a row (AMD EPYC, Zen 4).
constexpr int64_t AT_ONCE = 16;

// n floats, rounded.
template <class T>
INLINE void store_all(T* to, const float* from, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    store(to + i, load(from + i));
  }
  if (i < n) {
    store(to + i, load(from + i, n - i), n - i);
  }
}

}  // namespace torchmlx::ISA
