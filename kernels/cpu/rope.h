#pragma once

#include "kernel.h"

namespace torchmlx {

// Turns the first `width` of `dims` values of each head; the rest is copied. Cosines and sines come
// from tables of `width` values a row, or from positions and frequencies [width / 2].
struct Rope {
  Type type;
  const void* x;  // values of a head are contiguous
  void* out;      // contiguous, in x's order of axes
  int64_t batch, heads, tokens, dims, width;
  int64_t x_batch, x_head, x_token;          // strides
  int64_t out_batch, out_head, out_token;
  const float* cos;          // rows of tables; null with frequencies
  const float* sin;
  const int* positions;      // which row each token takes, or what it is turned by; may be null
  const float* frequencies;  // null with tables
  int64_t batch_step;        // of positions or rows: 0 where all sequences share them
  int64_t stream_step;       // between the positions of time, height and width
  int64_t table;             // rows of the tables
  int sections;              // 0: one stream, 1: in turn, 2: interleaved
  int section[3];
  float scale;
  bool interleaved, inverse, rounded;
};

KERNEL(rope, Rope)

}  // namespace torchmlx
