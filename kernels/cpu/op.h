// What the kernels compute, as plain data: pointers, sizes, and strides in elements. No MLX here, so
// that a standalone program can run them under sanitizers.
#pragma once

#include <cstdint>

namespace torchmlx {

enum class Type { f32, f16, bf16 };

// out[m, n] = sum over k of a[m, k] * b[k, n], plus bias[n]; summed in float32, rounded once.
struct Matmul {
  Type type;
  const void* a;
  const void* b;
  const void* bias;  // may be null
  void* out;         // rows of n, contiguous
  int64_t m, n, k;
  int64_t a_row, a_k;  // strides of a
  int64_t b_k, b_column;
  // Products of a batch: where each starts, in elements; their outputs follow one another.
  int64_t batch;
  const int64_t* a_starts;
  const int64_t* b_starts;
};

// Softmax, or its logarithm, along the middle axis of [outer, n, inner], contiguous.
struct Softmax {
  Type type;
  const void* x;
  void* out;
  int64_t outer, n, inner;
  bool logarithm;
};

// out = h / sqrt(mean(h^2) + eps) * (offset + weight) for rows of n, contiguous. h is x, or with a
// residual total = x + residual, rounded.
struct RmsNorm {
  Type type, weight_type;
  const void* x;
  const void* weight;    // may be null
  const void* residual;  // may be null
  void* out;
  void* total;
  int64_t rows, n;
  float eps, offset;
};

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

// The kernels; each is compiled once for each instruction set.
#define TORCHMLX_KERNELS(X) \
  X(attention, Attention)   \
  X(matmul, Matmul)         \
  X(rms_norm, RmsNorm)      \
  X(softmax, Softmax)

struct Kernels {
#define X(name, Problem) void (*name)(const Problem&);
  TORCHMLX_KERNELS(X)
#undef X
};

}  // namespace torchmlx
