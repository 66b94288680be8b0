// The SwiGLU pair. Few rows: both products of a column meet in registers. Many rows: two products,
// then the activation.
#include "swiglu.h"

#include "functions.h"
#include "gemv.h"

namespace torchmlx::ISA {
namespace {

// Values below which threads cost more than they bring.
constexpr int64_t SMALL = 1 << 14;

// Columns of one matrix that are read before the other's: long stretches of memory.
constexpr int64_t COLUMNS_AT_ONCE = 64;

INLINE vf activate(vf gate, vf up) { return gate / (1.0f + exponential(-gate)) * up; }

template <class T, class Words>
void few(const Swiglu& p) {
  auto part = [](const Matmul& m) {
    return FewRows<T, Words>(m, static_cast<const T*>(m.a), static_cast<const T*>(m.b),
                             static_cast<T*>(m.out));
  };
  const FewRows<T, Words> gate = part(p.gate), up = part(p.up);
  int64_t m = p.gate.m, n = p.gate.n;
  T* out = static_cast<T*>(p.gate.out);
  auto columns = [&](int64_t first, int64_t count) {
    float gates[FEW_ROWS * COLUMNS_AT_ONCE], ups[FEW_ROWS * COLUMNS_AT_ONCE];
    for (int64_t i = 0; i < count; ++i) {
      gate.products(first + i, gates + i, COLUMNS_AT_ONCE);
    }
    for (int64_t i = 0; i < count; ++i) {
      up.products(first + i, ups + i, COLUMNS_AT_ONCE);
    }
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t i = 0; i < count; i += W) {
        int64_t left = min(W, count - i), at = row * COLUMNS_AT_ONCE + i;
        vf value = activate(load(gates + at, left), load(ups + at, left));
        store(out + row * n + first + i, value, left);
      }
    }
  };
  parallel(n, max(1, gate.grain(2 * n) / 2), [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += COLUMNS_AT_ONCE) {
      columns(begin, min(COLUMNS_AT_ONCE, end - begin));
    }
  });
}

template <class T>
void activate_all(const Swiglu& p) {
  T* gate = static_cast<T*>(p.gate.out);
  const T* up = static_cast<const T*>(p.up.out);
  int64_t count = p.gate.m * p.gate.n;
  parallel(divide_up(count, W), SMALL / W, [&](int64_t begin, int64_t end) {
    int64_t whole = min(end * W, count / W * W);
    for (int64_t i = begin * W; i < whole; i += W) {
      store(gate + i, activate(load(gate + i), load(up + i)));
    }
    if (end * W > count) {
      int64_t left = count - whole;
      store(gate + whole, activate(load(gate + whole, left), load(up + whole, left)), left);
    }
  });
}

}  // namespace

void swiglu(const Swiglu& p) {
  if (p.gate.m * p.gate.n == 0) {
    return;
  }
  if (!p.few) {
    matmul(p.gate);
    matmul(p.up);
  }
  with_type(p.gate.type, [&](auto zero) {
    using T = decltype(zero);
    if (!p.few) {
      activate_all<T>(p);
      return;
    }
    few<T, typename WordsOf<T>::Type>(p);
  });
}

}  // namespace torchmlx::ISA
