// Sums of strips of a times strips of b, both packed: by register tiles, or by AMX.
#pragma once

#include "pack.h"

namespace torchmlx::ISA {

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

// Words from a row of a to the next where tiles take rows as they are: a vector more than the
// steps, as rows a power of two apart would fall into the same sets of the cache.
INLINE int64_t tile_pitch(int64_t steps) { return steps + TileProduct::STEPS; }

// Words of a row of a that `pack_rows` leaves.
template <class Words>
INLINE int64_t row_words(int64_t steps) {
  return Words::TILES ? tile_pitch(steps) : steps;
}

// A row's k values, and zeros up to whole tiles.
static inline void pack_row(uint32_t* dst, const bfloat* src, int64_t k, int64_t steps) {
  if (k > 0) {  // of an empty array there may be no address
    memcpy(dst, src, 2 * k);
  }
  memset(reinterpret_cast<bfloat*>(dst) + k, 0, 4 * steps - 2 * k);
}

// Rows whose k values are `k_stride` apart: W rows and steps at a time, turned.
static inline void pack_turned_rows(uint32_t* dst, int64_t rows, const bfloat* src,
                                    int64_t row_stride, int64_t k_stride, int64_t k,
                                    int64_t steps) {
  auto pair = [&](int64_t row, int64_t at) -> uint32_t {
    const bfloat* p = src + row * row_stride + at * k_stride;
    return p->bits | (at + 1 < k ? static_cast<uint32_t>(p[k_stride].bits) << 16 : 0);
  };
  for (int64_t row = 0; row < rows; row += W) {
    int64_t here = min(W, rows - row);
    for (int64_t step = 0; step < steps; step += W) {
      vf words[W] = {};
      for (int64_t i = 0; i < min(W, divide_up(k, 2) - step); ++i) {
        int64_t at = 2 * (step + i);
        const bfloat* low = src + row * row_stride + at * k_stride;
        if (row_stride == 1 && here == W && at + 1 < k) {
          words[i] = bits_to_float(widen_bits(read<vh>(low)) |
                                   widen_bits(read<vh>(low + k_stride)) << 16);
          continue;
        }
        uint32_t each[W] = {};
        for (int64_t j = 0; j < here; ++j) {
          each[j] = pair(row + j, at);
        }
        words[i] = read<vf>(each);
      }
      transpose(words);
      for (int64_t i = 0; i < here; ++i) {
        write(dst + (row + i) * tile_pitch(steps) + step, words[i]);
      }
    }
  }
}

// A strip of a's rows for `multiply_strips`: `steps` steps, a whole multiple of Words::UNIT.
template <class Words, class T>
static void pack_rows(uint32_t* dst, int64_t rows, const T* src, int64_t row_stride,
                      int64_t k_stride, int64_t k, int64_t steps) {
  if constexpr (!Words::TILES) {
    pack<Words>(dst, static_cast<int>(rows), rows, src, row_stride, k_stride, k);
  } else if (k_stride != 1) {
    pack_turned_rows(dst, rows, src, row_stride, k_stride, k, steps);
  } else {
    for (int64_t row = 0; row < rows; ++row) {
      pack_row(dst + row * tile_pitch(steps), src + row * row_stride, k, steps);
    }
  }
}

// Fills up a packed strip of b to whole tiles.
template <class Words>
INLINE void end_strip(uint32_t* strip, int64_t k, int64_t steps) {
  if constexpr (Words::TILES) {
    int64_t done = divide_up(k, Words::VALUES);
    memset(strip + done * Words::COLUMNS, 0, 4 * (steps - done) * Words::COLUMNS);
  }
}

// sums[rows][strips * Words::COLUMNS] of a strip of a (tiles take any number of rows) times packed
// strips of b. With a PITCH, a's rows are contiguous and that many words apart; else they are as
// `pack_rows` leaves them.
template <class Words, int PITCH = 0>
static void multiply_strips(int64_t rows, int64_t steps, const uint32_t* a, const uint32_t* b,
                            int64_t strips, float* sums, int64_t row, bool resume) {
  if constexpr (Words::TILES) {
    multiply_tiles({a, b, sums, PITCH ? PITCH : tile_pitch(steps), steps * Words::COLUMNS, row, rows,
                    steps, strips, resume});
  } else {
    Tile multiply = tile_of<Words, PITCH>(rows);
    for (int64_t c = 0; c < strips; ++c) {
      multiply(steps, a, b + c * steps * COLUMNS, sums + c * COLUMNS, row, resume);
    }
  }
}

}  // namespace torchmlx::ISA
