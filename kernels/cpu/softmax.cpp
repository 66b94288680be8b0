// Softmax and its logarithm along an axis, in float32.
//
// A row is read in chunks: each for its largest value, then for its exponentials, which are kept as
// floats and scaled once the row's sum is known. NaN reaches all of its row through the sum; a row
// of -inf is NaN because -inf is subtracted from itself.
#include "softmax.h"

#include "functions.h"

namespace torchmlx::ISA {
namespace {

// Values of a chunk: 8192 floats stay in the first-level cache between the passes over them.
constexpr int64_t CHUNK = 8192;

// Values that a thread should have: some 6 us of work. A vocabulary of 151,936 floats takes 55 us on
// one thread, 40 on two (AMD EPYC, Zen 4, virtual, one graph of ten, 2026-12-02).
constexpr int64_t SMALL = 1 << 14;

// Rows of half types up to which exponentials are kept: 1 MiB of floats, a second-level cache.
constexpr int64_t KEPT = 1 << 18;

constexpr float LOWEST = -__builtin_inff();

enum { PARTS, EXPONENTIALS };

struct Part {
  float largest, sum;  // sum of e^(x - largest); 0 where all are -inf
};

// What -inf is subtracted from must be finite, or all of a masked chunk would be NaN.
INLINE float shift_of(float largest) { return largest == LOWEST ? 0.0f : largest; }

template <class T>
float largest_of(const T* x, int64_t n) {
  vf top[4] = {splat(LOWEST), splat(LOWEST), splat(LOWEST), splat(LOWEST)};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    for (int j = 0; j < 4; ++j) {
      top[j] = larger(load(x + i + j * W), top[j]);
    }
  }
  for (; i < n; i += W) {
    top[0] = larger(n - i >= W ? load(x + i) : load_or(x + i, n - i, LOWEST), top[0]);
  }
  return largest(larger(larger(top[0], top[1]), larger(top[2], top[3])));
}

// The part of a chunk; `kept`, if there is one, gets the exponentials. It may be x.
template <class T>
Part examine(const T* x, int64_t n, float* kept) {
  float most = largest_of(x, n);
  vf shift = splat(shift_of(most)), total[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    for (int j = 0; j < 2; ++j) {
      vf e = exponential(load(x + i + j * W) - shift);
      total[j] += e;
      if (kept) {
        store(kept + i + j * W, e);
      }
    }
  }
  for (; i < n; i += W) {
    int64_t left = min(n - i, W);
    vf e = exponential((left == W ? load(x + i) : load_or(x + i, left, LOWEST)) - shift);
    total[0] += e;
    if (kept) {
      left == W ? store(kept + i, e) : store(kept + i, e, left);
    }
  }
  return {most, sum(total[0] + total[1])};
}

// Results of a chunk from what was kept, or from x.
template <class T>
void finish(const Softmax& p, const T* x, const float* kept, T* out, int64_t n, Part chunk,
            Part row) {
  vf top = splat(row.largest), log = splat(logarithm(row.sum));
  // Not from a chunk's shift: one of -inf has 0 for all its exponentials, and scales by 0.
  float scale = kept ? exponential(splat(chunk.largest - row.largest))[0] : 1.0f;
  vf factor = splat(scale / row.sum);
  for (int64_t i = 0; i < n; i += W) {
    int64_t left = min(n - i, W);
    vf value = kept ? (left == W ? load(kept + i) : load(kept + i, left))
                    : (left == W ? load(x + i) : load(x + i, left)) - top;
    vf result = p.logarithm ? value - log : (kept ? value : exponential(value)) * factor;
    left == W ? store(out + i, result) : store(out + i, result, left);
  }
}

Part merge(Part a, Part b) {
  float most = a.largest > b.largest ? a.largest : b.largest, shift = shift_of(most);
  return {most, a.sum * exponential(splat(a.largest - shift))[0] +
                    b.sum * exponential(splat(b.largest - shift))[0]};
}

Part merge(const Part* parts, int64_t count) {
  Part all = parts[0];
  for (int64_t i = 1; i < count; ++i) {
    all = merge(all, parts[i]);
  }
  return all;
}

// Where the exponentials of `rows` rows are kept: in the results, in memory, or nowhere.
template <class T>
float* memory_for(const Softmax& p, int64_t rows, T* out) {
  if (p.logarithm) {
    return nullptr;
  }
  if constexpr (is_float<T>) {
    return out;
  } else {
    return p.n > KEPT ? nullptr
                      : static_cast<float*>(scratch(EXPONENTIALS, rows * p.n * sizeof(float)));
  }
}

// A thread for each row, which stays in its second-level cache up to some 100,000 columns.
template <class T>
void whole_rows(const Softmax& p, const T* x, T* out) {
  int64_t chunks = divide_up(p.n, CHUNK);
  parallel(p.outer, SMALL / p.n + 1, [&](int64_t begin, int64_t end) {
    auto* parts = static_cast<Part*>(scratch(PARTS, chunks * sizeof(Part)));
    for (int64_t at = begin * p.n; at < end * p.n; at += p.n) {
      float* kept = memory_for(p, 1, out + at);
      for (int64_t c = 0; c < chunks; ++c) {
        int64_t i = c * CHUNK;
        parts[c] = examine(x + at + i, min(CHUNK, p.n - i), kept ? kept + i : nullptr);
      }
      Part row = merge(parts, chunks);
      for (int64_t c = 0; c < chunks; ++c) {
        int64_t i = c * CHUNK;
        finish(p, x + at + i, kept ? kept + i : nullptr, out + at + i, min(CHUNK, p.n - i),
               parts[c], row);
      }
    }
  });
}

// Few long rows, whose chunks are shared out.
template <class T>
void shared_rows(const Softmax& p, const T* x, T* out) {
  int64_t chunks = divide_up(p.n, CHUNK), pieces = p.outer * chunks;
  auto* parts = static_cast<Part*>(scratch(PARTS, (pieces + p.outer) * sizeof(Part)));
  Part* rows = parts + pieces;
  float* kept = memory_for(p, p.outer, out);
  auto each = [&](auto body) {
    parallel(pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        int64_t row = piece / chunks, first = piece % chunks * CHUNK, at = row * p.n + first;
        body(piece, row, at, min(CHUNK, p.n - first), kept ? kept + at : nullptr);
      }
    });
  };
  each([&](int64_t piece, int64_t, int64_t at, int64_t n, float* to) {
    parts[piece] = examine(x + at, n, to);
  });
  for (int64_t row = 0; row < p.outer; ++row) {
    rows[row] = merge(parts + row * chunks, chunks);
  }
  each([&](int64_t piece, int64_t row, int64_t at, int64_t n, const float* from) {
    finish(p, x + at, from, out + at, n, parts[piece], rows[row]);
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
    } else if (p.outer * p.n >= 2 * SMALL && p.n > CHUNK && p.outer < 2 * threads()) {
      shared_rows(p, x, out);
    } else {
      whole_rows(p, x, out);
    }
  });
}

}  // namespace torchmlx::ISA
