// A few rows times a matrix whose columns are contiguous along k (weights [n, k]): bound by reading
// the matrix, so each of its values is read once.
#pragma once

#include "matmul.h"
#include "pack.h"
#include "tasks.h"

namespace torchmlx::ISA {

// Rows up to which reading the matrix takes longer than multiplying.
constexpr int64_t FEW_ROWS = 8;

INLINE bool few_rows(const Matmul& p) { return p.m <= FEW_ROWS && p.b_k == 1 && p.k > 0; }

// Sums of a row, by the number of rows: enough to hide the latency of multiply-adds, few enough for
// 16 registers.
constexpr int parts_for(int rows) { return rows == 1 ? 4 : 2; }

// Products of R rows of x, `x_row` apart, and a column of b over k: result[r]'s W values add up to
// them.
//
// One column at a time, so that the processor sees one stream of reads: four columns of a page each
// (bf16, k = 2048) read 20 GB/s on one thread, one column 28, as a loop that only reads does (AMD
// EPYC, Zen 4, 2026-12-02; prefetching by software gained nothing).
template <class T, class Words, int R, class X>
INLINE void dots(int64_t k, const X* x, int64_t x_row, const T* b, vf* result) {
  constexpr int64_t STEP = W * Words::VALUES;
  constexpr int PARTS = parts_for(R);
  vf sums[R][PARTS] = {};
  auto step = [&](int64_t at, int64_t left, int part) INLINE_LAMBDA {
    vf weight = load_words<Words>(b + at, left);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      vf value = load_words<Words>(x + r * x_row + at, left);
      sums[r][part] = Words::multiply(sums[r][part], value, weight);
    }
  };
  int64_t at = 0;
  for (; at + PARTS * STEP <= k; at += PARTS * STEP) {
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; ++part) {
      step(at + part * STEP, STEP, part);
    }
  }
  for (; at < k; at += STEP) {
    step(at, min(STEP, k - at), 0);
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    result[r] = sums[r][0];
#pragma GCC unroll 4
    for (int part = 1; part < PARTS; ++part) {
      result[r] += sums[r][part];
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
    parallel(p_.n, grain(p_.n), [&](int64_t begin, int64_t end) { columns(begin, end); });
  }

  // Columns of a task, where there are so many.
  int64_t grain(int64_t columns) const { return task_rows(columns, p_.k * sizeof(T)); }

  void columns(int64_t begin, int64_t end) const {
    const T* bias = static_cast<const T*>(p_.bias);
    for (; begin < end; begin += AT_ONCE) {
      int64_t count = min(AT_ONCE, end - begin);
      float values[FEW_ROWS * AT_ONCE];
      for (int64_t i = 0; i < count; ++i) {
        products(begin + i, values + i, AT_ONCE);
      }
      for (int64_t row = 0; row < p_.m; ++row) {
        float* here = values + row * AT_ONCE;
        for (int64_t i = 0; bias && i < count; ++i) {
          here[i] += to_float(bias[begin + i]);
        }
        store_all(out_ + row * p_.n + begin, here, count);
      }
    }
  }

  // Each row's product with a column of b; they lie `stride` apart.
  INLINE_LAMBDA void products(int64_t column, float* values, int64_t stride) const {
    int64_t row = 0;
    for (; row + 4 <= p_.m; row += 4) {
      some_rows<4>(row, column, values, stride);
    }
    switch (p_.m - row) {
      case 3:
        some_rows<3>(row, column, values, stride);
        break;
      case 2:
        some_rows<2>(row, column, values, stride);
        break;
      case 1:
        some_rows<1>(row, column, values, stride);
    }
  }

 private:
  template <int R>
  void some_rows(int64_t row, int64_t column, float* values, int64_t stride) const {
    vf result[R];
    dots<T, Words, R>(p_.k, x_ + row * x_row_, x_row_, b_ + column * p_.b_column, result);
    for (int r = 0; r < R; ++r) {
      values[(row + r) * stride] = sum(result[r]);
    }
  }

  const Matmul& p_;
  const T* b_;
  T* out_;
  const X* x_ = nullptr;
  int64_t x_row_ = 0;
};

}  // namespace torchmlx::ISA
