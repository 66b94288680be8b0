// Softmax and its logarithm along an axis, in float32.
//
// A row is read in chunks, each for its largest value and then for its sum of exponentials, and once
// more for the results. NaN reaches all of its row through the sum; a row of -inf is NaN because
// -inf is subtracted from itself.
#include "math.h"

namespace torchmlx::ISA {
namespace {

// Values of a chunk: 8192 floats stay in the first-level cache between the two passes over them.
constexpr int64_t CHUNK = 8192;

// Values below which threads cost more than they bring.
constexpr int64_t SMALL = 1 << 14;

constexpr float LOWEST = -__builtin_inff();

struct Part {
  float largest, sum;  // sum of e^(x - largest); 0 where all are -inf
};

// What -inf is subtracted from must be finite, or all of a masked chunk would be NaN.
INLINE float shift_of(float largest) { return largest == LOWEST ? 0.0f : largest; }

template <class T>
Part examine(const T* x, int64_t n) {
  vf top = splat(LOWEST);
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    top = larger(load(x + i), top);
  }
  float most = largest(top);
  for (; i < n; ++i) {
    float value = to_float(x[i]);
    most = value > most ? value : most;
  }
  vf shift = splat(shift_of(most)), total[2] = {};
  for (i = 0; i + 2 * W <= n; i += 2 * W) {
    total[0] += exponential(load(x + i) - shift);
    total[1] += exponential(load(x + i + W) - shift);
  }
  for (; i < n; i += W) {
    int64_t left = n - i;
    vf value = left >= W ? load(x + i) : load_or(x + i, left, LOWEST);
    total[0] += exponential(value - shift);
  }
  return {most, sum(total[0] + total[1])};
}

template <class T>
void finish(const Softmax& p, const T* x, T* out, int64_t n, Part row) {
  vf top = splat(row.largest), factor = splat(1.0f / row.sum), log = splat(logarithm(row.sum));
  for (int64_t i = 0; i < n; i += W) {
    int64_t left = n - i;
    vf value = (left >= W ? load(x + i) : load(x + i, left)) - top;
    vf result = p.logarithm ? value - log : exponential(value) * factor;
    if (left >= W) {
      store(out + i, result);
    } else {
      store(out + i, result, left);
    }
  }
}

Part merge(Part a, Part b) {
  float most = a.largest > b.largest ? a.largest : b.largest, shift = shift_of(most);
  return {most, a.sum * exponential(splat(a.largest - shift))[0] +
                    b.sum * exponential(splat(b.largest - shift))[0]};
}

// A thread for each row, which stays in its second-level cache up to some 100,000 columns.
template <class T>
void whole_rows(const Softmax& p, const T* x, T* out) {
  parallel(p.outer, SMALL / p.n + 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin * p.n; at < end * p.n; at += p.n) {
      Part row = examine(x + at, min(CHUNK, p.n));
      for (int64_t i = CHUNK; i < p.n; i += CHUNK) {
        row = merge(row, examine(x + at + i, min(CHUNK, p.n - i)));
      }
      finish(p, x + at, out + at, p.n, row);
    }
  });
}

// Few long rows, whose chunks are shared out.
template <class T>
void shared_rows(const Softmax& p, const T* x, T* out) {
  int64_t chunks = divide_up(p.n, CHUNK), pieces = p.outer * chunks;
  auto* parts = static_cast<Part*>(scratch(0, pieces * sizeof(Part)));
  auto each = [&](auto body) {
    parallel(pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        int64_t row = piece / chunks, first = piece % chunks * CHUNK;
        body(piece, row * chunks, row * p.n + first, min(CHUNK, p.n - first));
      }
    });
  };
  each([&](int64_t piece, int64_t, int64_t at, int64_t n) { parts[piece] = examine(x + at, n); });
  for (int64_t piece = 0; piece < pieces; ++piece) {
    int64_t first = piece / chunks * chunks;
    parts[first] = piece == first ? parts[first] : merge(parts[first], parts[piece]);
  }
  each([&](int64_t, int64_t first, int64_t at, int64_t n) {
    finish(p, x + at, out + at, n, parts[first]);
  });
}

// COUNT columns of [n, inner] at a time, each with a softmax down its n values.
template <class T>
void columns(const Softmax& p, const T* x, T* out, int64_t count) {
  auto at = [&](int64_t i) {
    return count == W ? load(x + i * p.inner) : load(x + i * p.inner, count);
  };
  vf most = splat(LOWEST), total = {};
  for (int64_t i = 0; i < p.n; ++i) {
    most = larger(at(i), most);
  }
  for (int64_t i = 0; i < p.n; ++i) {
    total += exponential(at(i) - most);
  }
  vf factor = 1.0f / total, log = {};
  for (int lane = 0; lane < W; ++lane) {
    log[lane] = logarithm(total[lane]);
  }
  for (int64_t i = 0; i < p.n; ++i) {
    vf result = p.logarithm ? at(i) - most - log : exponential(at(i) - most) * factor;
    if (count == W) {
      store(out + i * p.inner, result);
    } else {
      store(out + i * p.inner, result, count);
    }
  }
}

template <class T>
void all_columns(const Softmax& p, const T* x, T* out) {
  int64_t groups = divide_up(p.inner, W);
  parallel(p.outer * groups, SMALL / W / max(1, p.n) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t first = i % groups * W, at = i / groups * p.n * p.inner + first;
      columns(p, x + at, out + at, min(W, p.inner - first));
    }
  });
}

}  // namespace

void softmax(const Softmax& p) {
  if (p.outer * p.n * p.inner == 0) {
    return;
  }
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    auto* x = static_cast<const T*>(p.x);
    auto* out = static_cast<T*>(p.out);
    if (p.inner > 1) {
      all_columns(p, x, out);
    } else if (p.n > CHUNK && p.outer < 2 * threads()) {
      shared_rows(p, x, out);
    } else {
      whole_rows(p, x, out);
    }
  });
}

}  // namespace torchmlx::ISA
