// A product of tiles, in terms of Intel's functions for tiles: the file that includes this one
// brings them, and compiles it with what they are there.
#pragma once

#include "amx/amx.h"

namespace torchmlx {
namespace {

// The tiles' sizes as LDTILECFG takes them: bytes of a row, and rows; 0 for tiles not used. Tiles 0
// to 3 hold sums: left and right of the upper rows, then of the lower; 4 and 5 those rows of a,
// 6 and 7 b's left and right.
struct alignas(64) TileSizes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  constexpr explicit TileSizes(int height) {
    int upper = height < 16 ? height : 16, lower = height - upper;
    const int heights[] = {upper, upper, lower, lower, upper, lower, 16, 16};
    for (int tile = 0; tile < 8; ++tile) {
      row_bytes[tile] = heights[tile] ? 64 : 0;
      rows[tile] = static_cast<uint8_t>(heights[tile]);
    }
  }
};

#define EIGHT(n) \
  TileSizes(n + 1), TileSizes(n + 2), TileSizes(n + 3), TileSizes(n + 4), TileSizes(n + 5), \
  TileSizes(n + 6), TileSizes(n + 7), TileSizes(n + 8)
// By height from 1 on. Constants: GCC's function for LDTILECFG does not tell it what is read, so
// that it may leave out what was just written.
constexpr TileSizes SIZES[TileProduct::ROWS] = {EIGHT(0), EIGHT(8), EIGHT(16), EIGHT(24)};
#undef EIGHT

// A strip of b for up to ROWS rows.
template <bool LOWER>
void multiply_strip(const TileProduct& p, const uint32_t* a, const uint32_t* b, float* sums) {
  constexpr int HALF = TileProduct::COLUMNS / 2;
  const uint32_t* lower_a = a + 16 * p.a_row;
  float* lower = sums + 16 * p.row;
  int64_t row = 4 * p.row, a_row = 4 * p.a_row;
  if (p.resume) {
    _tile_loadd(0, sums, row);
    _tile_loadd(1, sums + HALF, row);
    if (LOWER) {
      _tile_loadd(2, lower, row);
      _tile_loadd(3, lower + HALF, row);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    if (LOWER) {
      _tile_zero(2);
      _tile_zero(3);
    }
  }
  for (int64_t step = 0; step < p.steps; step += TileProduct::STEPS) {
    _tile_loadd(6, b + step * TileProduct::COLUMNS, 4 * TileProduct::COLUMNS);
    _tile_loadd(4, a + step, a_row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + step * TileProduct::COLUMNS + HALF, 4 * TileProduct::COLUMNS);
    _tile_dpbf16ps(1, 4, 7);
    if (LOWER) {
      _tile_loadd(5, lower_a + step, a_row);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, row);
  _tile_stored(1, sums + HALF, row);
  if (LOWER) {
    _tile_stored(2, lower, row);
    _tile_stored(3, lower + HALF, row);
  }
}

void multiply(const TileProduct& p) {
  constexpr int64_t ROWS = TileProduct::ROWS;
  for (int64_t row = 0; row < p.rows; row += ROWS) {
    int64_t height = p.rows - row < ROWS ? p.rows - row : ROWS;
    if (row == 0 || height < ROWS) {
      _tile_loadconfig(&SIZES[height - 1]);
    }
    const uint32_t* a = p.a + row * p.a_row;
    for (int64_t strip = 0; strip < p.strips; ++strip) {
      const uint32_t* b = p.b + strip * p.b_strip;
      float* sums = p.sums + row * p.row + strip * TileProduct::COLUMNS;
      if (height > 16) {
        multiply_strip<true>(p, a, b, sums);
      } else {
        multiply_strip<false>(p, a, b, sums);
      }
    }
  }
  // The system saves tiles that are in use with every switch between threads.
  _tile_release();
}

}  // namespace
}  // namespace torchmlx
