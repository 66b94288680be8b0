// The product of tiles on any machine. Intel's functions for tiles as the Software Developer's
// Manual (volume 2, TDPBF16PS) has them, but for products under 2^-126: those are rounded once
// more.
#include <cfloat>
#include <cstring>

#include "amx/amx.h"

namespace torchmlx {
namespace {

struct Tiles {
  uint8_t rows[8];
  uint16_t row_bytes[8];
  uint32_t words[8][16][16];
};

thread_local Tiles tiles;

inline float flushed(float x) { return x < FLT_MIN && x > -FLT_MIN ? 0.0f * x : x; }

inline float number(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return flushed(value);
}

void _tile_loadconfig(const void* sizes) {
  auto* bytes = static_cast<const uint8_t*>(sizes);
  memset(&tiles, 0, sizeof(tiles));
  memcpy(tiles.row_bytes, bytes + 16, sizeof(tiles.row_bytes));
  memcpy(tiles.rows, bytes + 48, sizeof(tiles.rows));
}

void _tile_release() { memset(&tiles, 0, sizeof(tiles)); }

void _tile_zero(int tile) { memset(tiles.words[tile], 0, sizeof(tiles.words[tile])); }

void _tile_loadd(int tile, const void* from, int64_t stride) {
  _tile_zero(tile);
  for (int row = 0; row < tiles.rows[tile]; ++row) {
    memcpy(tiles.words[tile][row], static_cast<const char*>(from) + row * stride,
           tiles.row_bytes[tile]);
  }
}

void _tile_stored(int tile, void* to, int64_t stride) {
  for (int row = 0; row < tiles.rows[tile]; ++row) {
    memcpy(static_cast<char*>(to) + row * stride, tiles.words[tile][row], tiles.row_bytes[tile]);
  }
}

// First and second values of pairs are summed apart, then together, then added to the tile.
void _tile_dpbf16ps(int sum, int a, int b) {
  for (int row = 0; row < tiles.rows[sum]; ++row) {
    float first[16] = {}, second[16] = {};
    for (int k = 0; k < tiles.row_bytes[a] / 4; ++k) {
      uint32_t pair = tiles.words[a][row][k];
      float first_a = number(pair << 16), second_a = number(pair & 0xffff0000);
      const uint32_t* pairs = tiles.words[b][k];
      for (int column = 0; column < 16; ++column) {
        first[column] = flushed(first[column] + first_a * number(pairs[column] << 16));
        second[column] = flushed(second[column] + second_a * number(pairs[column] & 0xffff0000));
      }
    }
    for (int column = 0; column < tiles.row_bytes[sum] / 4; ++column) {
      float part = flushed(first[column] + second[column]);
      float total = flushed(number(tiles.words[sum][row][column]) + part);
      memcpy(&tiles.words[sum][row][column], &total, 4);
    }
  }
}

}  // namespace
}  // namespace torchmlx

#include "amx/multiply.h"

namespace torchmlx {

void multiply_by_loops(const TileProduct& p) { multiply(p); }

}  // namespace torchmlx
