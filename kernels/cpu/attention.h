#pragma once

#include "kernel.h"

namespace torchmlx {

// Attention of q [batch, heads, queries, d] to k [batch, kv_heads, keys, d], v [.., keys, values].
// Strides of batch, head and position; the last axes are contiguous. out and gate are contiguous.
struct Attention {
  Type type;
  const void* q;
  const void* k;
  const void* v;
  void* out;
  int64_t q_strides[3], k_strides[3], v_strides[3];
  int64_t batch, heads, kv_heads, queries, keys, d, values;
  const void* mask;      // may be null
  const int* lengths;    // valid keys of each batch; may be null
  const void* gate;      // may be null
  int64_t mask_strides[4];
  bool boolean;          // true takes part; otherwise the mask is added
  Type mask_type;
  bool causal;
  int64_t window;  // 0: none
  float scale;
};

KERNEL(attention, Attention)

}  // namespace torchmlx
