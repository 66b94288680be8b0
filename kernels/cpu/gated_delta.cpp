// The gated delta rule, a thread a head, in float32.
//
// FEW times go together: with S the state before them and G the running sum of g,
//   delta_i = beta_i (v_i - exp(G_i) k_i S - sum over j < i of exp(G_i - G_j) (k_i k_j) delta_j)
//   o_i = exp(G_i) q_i S + sum over j <= i of exp(G_i - G_j) (q_i k_j) delta_j
// so that the state is read twice and written once for all of them, while sums stay in registers.
#include "gated_delta.h"

#include "functions.h"

namespace torchmlx::ISA {
namespace {

// Multiplications that a thread should have at least.
constexpr int64_t SMALL = 1 << 15;

// Times that go together, and vectors of columns: 2 FEW WIDE sums fill the registers.
#if defined(__AVX512F__)
constexpr int FEW = 4, WIDE = 2;
#else
constexpr int FEW = 4, WIDE = 1;
#endif

enum { VALUES, STATE };

float value_of(Type type, const void* x, int64_t i) {
  float value = 0;
  with_type(type, [&](auto zero) { value = to_float(static_cast<const decltype(zero)*>(x)[i]); });
  return value;
}

float exp_of(float x) { return exponential(splat(x))[0]; }

template <class T>
void widen_row(const T* x, float* to, int64_t n) {
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    store(to + i, load(x + i));
  }
  if (i < n) {
    store(to + i, load(x + i, n - i), n - i);
  }
}

float dot(const float* a, const float* b, int64_t n) {
  vf sums[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    sums[0] += load(a + i) * load(b + i);
    sums[1] += load(a + i + W) * load(b + i + W);
  }
  for (; i < n; i += W) {
    int64_t left = min(n - i, W);
    sums[0] += left == W ? load(a + i) * load(b + i) : load(a + i, left) * load(b + i, left);
  }
  return sum(sums[0] + sums[1]);
}

void scale_row(float* x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    x[i] *= factor;
  }
}

// What times of one head share, for all columns: keys and queries, and the factors of the formulas.
struct Times {
  float* q;  // [FEW, dk]
  float* k;
  float* v;    // [FEW, columns]
  float* out;  // [FEW, columns]
  float beta[FEW], grown[FEW], rest[FEW], last;
  float keys[FEW][FEW], queries[FEW][FEW];  // products, decayed
};

// COUNT times of `lanes` vectors of columns: S at `from` becomes that at `to`.
template <int COUNT, int VECTORS>
void advance(const Times& t, const float* from, int64_t from_row, float* to, int64_t to_row,
             int64_t dk, int64_t dv, int64_t column) {
  vf known[COUNT][VECTORS] = {}, read[COUNT][VECTORS] = {};
  for (int64_t r = 0; r < dk; ++r) {
    vf state[VECTORS];
    for (int j = 0; j < VECTORS; ++j) {
      state[j] = load(from + r * from_row + j * W);
    }
    for (int i = 0; i < COUNT; ++i) {
      vf k = splat(t.k[i * dk + r]), q = splat(t.q[i * dk + r]);
      for (int j = 0; j < VECTORS; ++j) {
        known[i][j] += state[j] * k;
        read[i][j] += state[j] * q;
      }
    }
  }
  vf deltas[COUNT][VECTORS];
  for (int i = 0; i < COUNT; ++i) {
    for (int j = 0; j < VECTORS; ++j) {
      vf value = load(t.v + i * dv + column + j * W) - known[i][j] * t.grown[i];
      for (int earlier = 0; earlier < i; ++earlier) {
        value -= deltas[earlier][j] * t.keys[i][earlier];
      }
      deltas[i][j] = value * t.beta[i];
      vf o = read[i][j] * t.grown[i];
      for (int earlier = 0; earlier <= i; ++earlier) {
        o += deltas[earlier][j] * t.queries[i][earlier];
      }
      store(t.out + i * dv + column + j * W, o);
    }
  }
  for (int i = 0; i < COUNT; ++i) {
    for (int j = 0; j < VECTORS; ++j) {
      deltas[i][j] *= t.rest[i];
    }
  }
  for (int64_t r = 0; r < dk; ++r) {
    vf state[VECTORS];
    for (int j = 0; j < VECTORS; ++j) {
      state[j] = load(from + r * from_row + j * W) * t.last;
    }
    for (int i = 0; i < COUNT; ++i) {
      vf k = splat(t.k[i * dk + r]);
      for (int j = 0; j < VECTORS; ++j) {
        state[j] += deltas[i][j] * k;
      }
    }
    for (int j = 0; j < VECTORS; ++j) {
      store(to + r * to_row + j * W, state[j]);
    }
  }
}

template <class T>
class Head {
 public:
  Head(const GatedDelta& p, int64_t index)
      : p_(p), batch_(index / p.heads), head_(index % p.heads),
        width_(divide_up(p.dv, WIDE * W) * WIDE * W), whole_(width_ == p.dv) {
    auto* memory = static_cast<float*>(
        scratch(VALUES, (FEW * (2 * p.dk + 2 * width_)) * sizeof(float)));
    times_.q = memory;
    times_.k = memory + FEW * p.dk;
    times_.v = memory + 2 * FEW * p.dk;
    times_.out = times_.v + FEW * width_;
    for (int64_t i = 0; i < FEW * width_; ++i) {
      times_.v[i] = 0;
    }
  }

  void compute() {
    int64_t size = p_.dk * p_.dv, at = (batch_ * p_.heads + head_) * size;
    const float* state = p_.state ? p_.state + at : nullptr;
    float* next = p_.next + at;
    float* held = whole_ ? next
                         : static_cast<float*>(scratch(STATE, p_.dk * width_ * sizeof(float)));
    const float* from = held;
    if (whole_ && state) {
      from = state;
    } else {
      fill(state, held);
    }
    for (int64_t t = 0; t < p_.tokens;) {
      if (p_.tokens - t >= FEW) {
        pass<FEW, WIDE, WIDE>(t, from, held);
        t += FEW;
      } else {
        pass<1, 4 * WIDE, WIDE>(t, from, held);
        ++t;
      }
      from = held;
    }
    for (int64_t r = 0; r < p_.dk && !whole_; ++r) {
      memcpy(next + r * p_.dv, held + r * width_, p_.dv * sizeof(float));
    }
  }

 private:
  // The state, or zeros, in rows of width_ values.
  void fill(const float* state, float* held) const {
    for (int64_t r = 0; r < p_.dk; ++r) {
      int64_t known = state ? p_.dv : 0;
      if (known) {
        memcpy(held + r * width_, state + r * p_.dv, known * sizeof(float));
      }
      memset(held + r * width_ + known, 0, (width_ - known) * sizeof(float));
    }
  }

  template <int COUNT, int MOST, int LEAST>
  void pass(int64_t t, const float* from, float* to) {
    prepare(t, COUNT);
    int64_t c = 0;
    for (; c + MOST * W <= width_; c += MOST * W) {
      advance<COUNT, MOST>(times_, from + c, width_, to + c, width_, p_.dk, width_, c);
    }
    for (; c < width_; c += LEAST * W) {
      advance<COUNT, LEAST>(times_, from + c, width_, to + c, width_, p_.dk, width_, c);
    }
    for (int i = 0; i < COUNT; ++i) {
      T* out = static_cast<T*>(p_.out) + (((batch_ * p_.tokens) + t + i) * p_.heads + head_) * p_.dv;
      const float* values = times_.out + i * width_;
      int64_t j = 0;
      for (; j + W <= p_.dv; j += W) {
        store(out + j, load(values + j));
      }
      if (j < p_.dv) {
        store(out + j, load(values + j), p_.dv - j);
      }
    }
  }

  void prepare(int64_t t, int count) {
    int64_t key_head = head_ / (p_.heads / p_.key_heads), dk = p_.dk;
    float sums[FEW], total = 0;
    for (int i = 0; i < count; ++i) {
      float* q = times_.q + i * dk;
      float* k = times_.k + i * dk;
      widen_row(row(p_.q, p_.q_strides, t + i, key_head), q, dk);
      widen_row(row(p_.k, p_.k_strides, t + i, key_head), k, dk);
      widen_row(row(p_.v, p_.v_strides, t + i, head_), times_.v + i * width_, p_.dv);
      scale_row(q, p_.scale * (p_.normalise ? length(q) : 1.0f), dk);
      scale_row(k, p_.normalise ? length(k) : 1.0f, dk);
      int64_t gate = (batch_ * p_.tokens + t + i) * p_.heads + head_;
      total += value_of(p_.g_type, p_.g, gate);
      sums[i] = total;
      times_.beta[i] = value_of(p_.beta_type, p_.beta, gate);
    }
    for (int i = 0; i < count; ++i) {
      times_.grown[i] = exp_of(sums[i]);
      times_.rest[i] = exp_of(total - sums[i]);
      for (int j = 0; j <= i; ++j) {
        float decay = j == i ? 1.0f : exp_of(sums[i] - sums[j]);
        times_.queries[i][j] = decay * dot(times_.q + i * dk, times_.k + j * dk, dk);
        times_.keys[i][j] = j == i ? 0 : decay * dot(times_.k + i * dk, times_.k + j * dk, dk);
      }
    }
    times_.last = times_.grown[count - 1];
  }

  float length(const float* x) const { return 1.0f / __builtin_sqrtf(dot(x, x, p_.dk) + 1e-6f); }

  const T* row(const void* x, const int64_t (&strides)[3], int64_t t, int64_t head) const {
    return static_cast<const T*>(x) + batch_ * strides[0] + t * strides[1] + head * strides[2];
  }

  const GatedDelta& p_;
  int64_t batch_, head_;
  int64_t width_;  // dv and what fills its last vectors
  bool whole_;     // nothing does
  Times times_;
};

}  // namespace

void gated_delta(const GatedDelta& p) {
  int64_t work = p.tokens * p.dk * p.dv;
  with_type(p.type, [&](auto zero) {
    parallel(p.batch * p.heads, SMALL / max(1, work) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Head<decltype(zero)>(p, i).compute();
      }
    });
  });
}

}  // namespace torchmlx::ISA
