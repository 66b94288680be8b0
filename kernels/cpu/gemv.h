// A few rows times a matrix whose columns are contiguous along k (weights [n, k]): bound by reading
// the matrix, so each of its values is read once.
#pragma once

#include "matmul.h"
#include "pack.h"

namespace torchmlx::ISA {

// Rows up to which reading the matrix takes longer than multiplying.
constexpr int64_t FEW_ROWS = 8;

// Weights that a task reads, in bytes: enough to hide the cost of handing it out.
constexpr int64_t TASK_BYTES = 64 << 10;

INLINE bool few_rows(const Matmul& p) { return p.m <= FEW_ROWS && p.b_k == 1 && p.k > 0; }

// Columns of b taken together: so many streams does the processor prefetch, and as many sums hide
// the latency of the multiply-adds.
constexpr int GROUP = 4;

// sums[r][c] of R rows of x, `x_row` apart, and C columns of b, over k.
template <class T, class Words, class X, int R, int C>
INLINE void dots(int64_t k, const X* x, int64_t x_row, const T* b, int64_t b_column,
                 float (&result)[R][C]) {
  constexpr int64_t STEP = W * Words::VALUES;
  vf sums[R][C] = {};
  auto step = [&](int64_t at, int64_t left) INLINE_LAMBDA {
    vf weight[C];
    for (int c = 0; c < C; ++c) {
      weight[c] = load_words<Words>(b + c * b_column + at, left);
    }
    for (int r = 0; r < R; ++r) {
      vf value = load_words<Words>(x + r * x_row + at, left);
      for (int c = 0; c < C; ++c) {
        sums[r][c] = Words::multiply(sums[r][c], value, weight[c]);
      }
    }
  };
  int64_t at = 0;
  for (; at + STEP <= k; at += STEP) {
    step(at, STEP);
  }
  if (at < k) {
    step(at, k - at);
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      result[r][c] = sum(sums[r][c]);
    }
  }
}

template <class T, class Words>
class FewRows {
  // What rows of x are kept as: bf16 beside bf16 pairs, floats otherwise.
  using X = typename Words::template Kept<T>;

 public:
  FewRows(const Matmul& p, const T* a, const T* b, T* out) : p_(p), b_(b), out_(out) {
    if constexpr (sizeof(X) == sizeof(T)) {
      if (p.a_k == 1) {
        x_ = a;
        x_row_ = p.a_row;
        return;
      }
    }
    X* rows = static_cast<X*>(scratch(A, p.m * p.k * sizeof(X)));
    for (int64_t r = 0; r < p.m; ++r) {
      for (int64_t i = 0; i < p.k; ++i) {
        const T& value = a[r * p.a_row + i * p.a_k];
        if constexpr (is_float<X>) {
          rows[r * p.k + i] = to_float(value);
        } else {
          rows[r * p.k + i] = value;
        }
      }
    }
    x_ = rows;
    x_row_ = p.k;
  }

  void compute() {
    int64_t grain = max(1, TASK_BYTES / (p_.k * sizeof(T)) / GROUP) * GROUP;
    parallel(p_.n, grain, [&](int64_t begin, int64_t end) {
      int64_t column = begin;
      for (; column + GROUP <= end; column += GROUP) {
        all_rows<GROUP>(column);
      }
      for (; column < end; ++column) {
        all_rows<1>(column);
      }
    });
  }

 private:
  template <int C>
  void all_rows(int64_t column) {
    int64_t row = 0;
    for (; row + 4 <= p_.m; row += 4) {
      some_rows<4, C>(row, column);
    }
    switch (p_.m - row) {
      case 3:
        return some_rows<3, C>(row, column);
      case 2:
        return some_rows<2, C>(row, column);
      case 1:
        return some_rows<1, C>(row, column);
    }
  }

  template <int R, int C>
  void some_rows(int64_t row, int64_t column) {
    float result[R][C];
    dots<T, Words>(p_.k, x_ + row * x_row_, x_row_, b_ + column * p_.b_column, p_.b_column, result);
    const T* bias = static_cast<const T*>(p_.bias);
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) {
        float value = result[r][c] + (bias ? to_float(bias[column + c]) : 0.0f);
        store(out_ + (row + r) * p_.n + column + c, splat(value), 1);
      }
    }
  }

  const Matmul& p_;
  const T* b_;
  T* out_;
  const X* x_ = nullptr;
  int64_t x_row_ = 0;
};

}  // namespace torchmlx::ISA
