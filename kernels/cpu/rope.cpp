// Rotary position embedding: a token's cosines and sines once, then all of its heads.
#include "rope.h"

#include "simd.h"

namespace torchmlx::ISA {
namespace {

// Values below which threads cost more than they bring.
constexpr int64_t SMALL = 1 << 14;

// Which position stream frequency f takes.
int stream_of(const Rope& p, int64_t f) {
  if (p.sections == 1) {
    return f < p.section[0] ? 0 : f < p.section[0] + p.section[1] ? 1 : 2;
  }
  if (p.sections == 2) {
    int stream = static_cast<int>(f % 3);
    return stream && f < 3 * p.section[stream] ? stream : 0;
  }
  return 0;
}

// The index that element i is paired with.
INLINE int64_t partner(const Rope& p, int64_t i) {
  int64_t half = p.width / 2;
  return p.interleaved ? i ^ 1 : i < half ? i + half : i - half;
}

// Cosines, and sines with the sign that the partner's product gets, of a token.
void angles(const Rope& p, int64_t batch, int64_t token, float* c, float* s) {
  int64_t at = batch * p.batch_step + token, half = p.width / 2;
  if (p.frequencies) {
    for (int64_t f = 0; f < half; ++f) {
      int position = p.positions[stream_of(p, f) * p.stream_step + at];
      float angle = static_cast<float>(position) * p.frequencies[f];
      int64_t first = p.interleaved ? 2 * f : f, second = partner(p, first);
      c[first] = c[second] = __builtin_cosf(angle) * p.scale;
      s[first] = s[second] = __builtin_sinf(angle) * p.scale;
    }
  } else {
    int64_t row = at;
    if (p.positions) {  // as in Python, negative ones count from the end
      row = p.positions[at];
      row = min(max(row < 0 ? row + p.table : row, 0), p.table - 1);
    }
    memcpy(c, p.cos + row * p.width, p.width * sizeof(float));
    memcpy(s, p.sin + row * p.width, p.width * sizeof(float));
  }
  if (p.inverse) {  // the partner's own sine, with the other sign
    for (int64_t i = 0; i < p.width; ++i) {
      int64_t j = partner(p, i);
      if (i < j) {
        float mine = s[i];
        s[i] = s[j];
        s[j] = mine;
      }
    }
  }
  for (int64_t i = 0; i < p.width; ++i) {
    s[i] = (i < partner(p, i)) != p.inverse ? -s[i] : s[i];
  }
}

// Values as T has them.
template <class T>
void round_to(float* values, int64_t n) {
  if constexpr (!is_float<T>) {
    T rounded[W];
    for (int64_t i = 0; i < n; i += W) {
      int64_t count = min(W, n - i);
      store(rounded, load(values + i, count), count);
      store(values + i, load(rounded, count), count);
    }
  }
}

template <class T>
INLINE void turn_halves(const T* x, T* out, const float* c, const float* s, int64_t half) {
  for (int64_t i = 0; i < half; i += W) {
    int64_t n = half - i;
    if (n >= W) {
      vf a = load(x + i), b = load(x + half + i);
      store(out + i, a * load(c + i) + b * load(s + i));
      store(out + half + i, b * load(c + half + i) + a * load(s + half + i));
    } else {
      vf a = load(x + i, n), b = load(x + half + i, n);
      store(out + i, a * load(c + i, n) + b * load(s + i, n), n);
      store(out + half + i, b * load(c + half + i, n) + a * load(s + half + i, n), n);
    }
  }
}

template <class T>
INLINE void turn_neighbours(const T* x, T* out, const float* c, const float* s, int64_t width) {
  for (int64_t i = 0; i < width; i += W) {
    int64_t n = min(W, width - i);
    float swapped[W] = {};
    for (int64_t j = 0; j < n; ++j) {
      swapped[j] = to_float(x[(i + j) ^ 1]);
    }
    vf own = load(x + i, n) * load(c + i, n);
    store(out + i, own + load(swapped) * load(s + i, n), n);
  }
}

template <class T>
void turn_token(const Rope& p, int64_t batch, int64_t token, float* c, float* s) {
  angles(p, batch, token, c, s);
  if (p.rounded) {
    round_to<T>(c, p.width);
    round_to<T>(s, p.width);
  }
  const T* x = static_cast<const T*>(p.x) + batch * p.x_batch + token * p.x_token;
  T* out = static_cast<T*>(p.out) + batch * p.out_batch + token * p.out_token;
  for (int64_t head = 0; head < p.heads; ++head, x += p.x_head, out += p.out_head) {
    if (p.interleaved) {
      turn_neighbours(x, out, c, s, p.width);
    } else {
      turn_halves(x, out, c, s, p.width / 2);
    }
    memcpy(out + p.width, x + p.width, (p.dims - p.width) * sizeof(T));
  }
}

}  // namespace

void rope(const Rope& p) {
  int64_t each = max(1, p.heads * p.dims);
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    parallel(p.batch * p.tokens, SMALL / each + 1, [&](int64_t begin, int64_t end) {
      auto* c = static_cast<float*>(scratch(0, 2 * p.width * sizeof(float)));
      for (int64_t i = begin; i < end; ++i) {
        turn_token<T>(p, i / p.tokens, i % p.tokens, c, c + p.width);
      }
    });
  });
}

}  // namespace torchmlx::ISA
