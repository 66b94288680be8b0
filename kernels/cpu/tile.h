// Register tiles: sums of a strip of a times a strip of b, both packed.
#pragma once

#include "pack.h"

namespace torchmlx::ISA {

// A tile of ROWS x COLUMNS sums fills the registers, but for b's vectors and one of a.
#if defined(__AVX512F__)
constexpr int ROWS = 14, VECTORS = 2;  // 32 registers
#elif defined(__aarch64__)
constexpr int ROWS = 8, VECTORS = 3;  // 32 registers
#elif defined(__AVX2__)
constexpr int ROWS = 6, VECTORS = 2;  // 16 registers
#else
constexpr int ROWS = 4, VECTORS = 2;  // 16 registers
#endif
constexpr int COLUMNS = VECTORS * W;

// sums[R][COLUMNS], whose rows are `row` apart, over the steps of k; added to if they resume. a is
// packed as b is or, with a PITCH, its rows are contiguous and that many words apart.
template <class Words, int R, int PITCH = 0>
static void tile(int64_t steps, const uint32_t* a, const uint32_t* b, float* sums, int64_t row,
          bool resume) {
  constexpr int STEP = PITCH ? 1 : R, LANE = PITCH ? PITCH : 1;
  vf sum[R][VECTORS];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      sum[r][v] = resume ? load(sums + r * row + v * W) : vf{};
    }
  }
  for (int64_t step = 0; step < steps; ++step, a += STEP, b += COLUMNS) {
    vf column[VECTORS];
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      column[v] = read<vf>(b + v * W);
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < VECTORS; ++v) {
        sum[r][v] = Words::multiply(sum[r][v], Words::spread(a[r * LANE]), column[v]);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < VECTORS; ++v) {
      store(sums + r * row + v * W, sum[r][v]);
    }
  }
}

using Tile = void (*)(int64_t, const uint32_t*, const uint32_t*, float*, int64_t, bool);

template <class Words, int PITCH = 0, int R = ROWS>
static Tile tile_of(int64_t rows) {
  if constexpr (R == 1) {
    return tile<Words, 1, PITCH>;
  } else {
    return rows == R ? tile<Words, R, PITCH> : tile_of<Words, PITCH, R - 1>(rows);
  }
}

}  // namespace torchmlx::ISA
