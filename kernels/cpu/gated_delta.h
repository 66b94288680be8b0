#pragma once

#include "kernel.h"

namespace torchmlx {

// o_t = q_t S_t with S_t = exp(g_t) S_(t-1) + k_t (outer) beta_t (v_t - k_t exp(g_t) S_(t-1)).
// q, k [batch, tokens, key_heads, dk] and v [batch, tokens, heads, dv] with strides in elements for
// all axes but the last; g, beta [batch, tokens, heads] and out, contiguous; state and next
// [batch, heads, dk, dv] in float32, perhaps the same memory. No axis is empty.
struct GatedDelta {
  Type type, g_type, beta_type;
  const void* q;
  const void* k;
  const void* v;
  const void* g;
  const void* beta;
  const float* state;  // may be null: zeros
  void* out;
  float* next;
  int64_t q_strides[3], k_strides[3], v_strides[3];
  int64_t batch, tokens, key_heads, heads, dk, dv;
  bool normalise;
  float scale;
};

KERNEL(gated_delta, GatedDelta)

}  // namespace torchmlx
