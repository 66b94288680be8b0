// Products of tiles, as Intel's Advanced Matrix Extensions compute them: bf16 pairs, whose products
// are summed in float.
#pragma once

#include <cstdint>

namespace torchmlx {

// sums[rows][strips * COLUMNS] = a times b, added to if it resumes. A word is a pair of bf16 along
// k. Subnormal numbers count as zero, and sums that would be subnormal become zero.
struct TileProduct {
  // A tile of sums is half as high and half as wide; one of a or b has that many steps.
  static constexpr int ROWS = 32, COLUMNS = 32, STEPS = 16;
  const uint32_t* a;  // [rows][steps], rows `a_row` words apart
  const uint32_t* b;  // [strips][steps][COLUMNS], strips `b_strip` words apart
  float* sums;        // rows `row` apart
  int64_t a_row, b_strip, row;
  int64_t rows;
  int64_t steps;  // a multiple of STEPS
  int64_t strips;
  bool resume;
};

using MultiplyTiles = void (*)(const TileProduct&);

// By the processor. Only where `amx` gives it: elsewhere its first instruction is illegal.
void multiply_by_amx(const TileProduct&);

// By plain loops with the same results, for machines without AMX: slow.
void multiply_by_loops(const TileProduct&);

// multiply_by_amx if this processor has AMX, the system lets this process use it, and it computes
// what the loops do; else null. Asks for the permission, which holds for all threads.
MultiplyTiles amx();

// Whether two compute the same.
bool agree(MultiplyTiles one, MultiplyTiles other);

// Whether kernels shall multiply tiles: AMX is in use or emulated (see runtime/isa.h).
bool tiles_in_use();

// By what is in use.
void multiply_tiles(const TileProduct&);

}  // namespace torchmlx
