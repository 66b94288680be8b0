// Attention in blocks of queries and keys; scores, softmax and weighted sum in float32.
//
// A unit of work is some queries that share keys, and a segment of those keys: the queries of one
// head, or, for one token, the heads that share keys. It keeps for each query the largest score, the
// sum of exponentials and the weighted sum so far. Few queries read keys and values as they lie in
// memory; many pack them for register tiles.
#include "attention.h"

#include "gemv.h"
#include "functions.h"
#include "tile.h"

namespace torchmlx::ISA {
namespace {

// Keys of a segment at least, where the units alone do not keep all threads busy.
constexpr int64_t SEGMENT = 256;

// Queries up to which reading keys takes longer than multiplying.
constexpr int64_t FEW_QUERIES = 8;

constexpr float LOWEST = -__builtin_inff();

enum { QUERY, KEY, VALUE, SCORES, PARTS };

// What weights and values are multiplied in. Tiles take a weight as two bf16, the second what the
// first leaves: one alone would be off by 4e-7 to 2e-6 (nmse; the kernel's bar is 1e-8), two are by
// 1e-11.
template <class Words>
struct WeightsOf {
  using Type = Floats;
};
struct Halves : Tiles {
  static constexpr int VALUES = 1;
};
template <>
struct WeightsOf<Tiles> {
  using Type = Halves;
};

INLINE vf halves(vf weight) {
  vu first = float_to_bits(weight) & 0xffff0000u;
  vu second = float_to_bits(weight - bits_to_float(first)) + 0x8000;
  return bits_to_float(first >> 16 | (second & 0xffff0000u));
}

// Strips of `columns` of values of some keys, `row` apart, each `steps` long.
template <class Words, class T>
void pack_values(uint32_t* to, const T* values, int64_t row, int64_t keys, int64_t steps,
                 int64_t columns) {
  constexpr int COLUMNS = Words::COLUMNS;
  for (int64_t column = 0; column < columns; column += COLUMNS, to += steps * COLUMNS) {
    int64_t lanes = min(COLUMNS, columns - column);
    if constexpr (!Words::TILES) {
      pack<Floats>(to, COLUMNS, lanes, values + column, 1, row, keys);
      continue;
    }
    for (int64_t key = 0; key < keys; ++key) {
      for (int64_t lane = 0; lane < COLUMNS; lane += W) {
        const T* from = values + key * row + column + lane;
        int64_t left = max(0, lanes - lane);
        vu first = float_to_bits(left >= W ? load(from) : load(from, left));
        // An infinite value times the first half is all of it: times a second one of 0 it were NaN.
        vu second = select((vi)((first & 0x7f800000) == 0x7f800000), vu{}, first);
        write(to + key * COLUMNS + lane, first >> 16 | second);
      }
    }
    end_strip<Halves>(to, keys, steps);
  }
}

// Queries of a unit: the i-th is at q + i * row; its position is `position`, plus i where they are
// one head's.
template <class T>
struct Queries {
  const T* q;
  int64_t row, count, position, positions_step;
  const T* k;
  const T* v;
  const char* mask;  // of the first query; null without one
  int64_t mask_row;
  int64_t at;  // of the first query's result, and of its gate, in rows
};

// What a segment of keys gave: largest score, sum of exponentials, and weighted sums of `row`.
struct Part {
  float* largest;
  float* sum;
  float* out;
};

template <class T, class Words>
class Unit {
  static constexpr int ROWS = Words::ROWS, COLUMNS = Words::COLUMNS;
  using Dots = typename WordsOf<T>::Type;

 public:
  // Queries of a unit, so that packing keys and values costs a small part of using them.
  static constexpr int64_t QUERIES = (Words::TILES ? 8 : 16) * ROWS;

  // Keys of a block, whole strips of a tile: their scores stay in the first two levels of cache.
  static constexpr int64_t KEYS = 64 / COLUMNS * COLUMNS;

  // Values of a row of results.
  static int64_t padded(int64_t values) { return divide_up(values, COLUMNS) * COLUMNS; }

  Unit(const Attention& p, const Queries<T>& u, Part part)
      : p_(p), u_(u), part_(part), row_(padded(p.values)) {}

  // Sees the keys of [begin, end) that some query may see.
  void attend(int64_t begin, int64_t end) {
    for (int64_t i = 0; i < u_.count; ++i) {
      part_.largest[i] = LOWEST;
      part_.sum[i] = 0.0f;
    }
    memset(part_.out, 0, 4 * u_.count * row_);
    scores_ = static_cast<float*>(scratch(SCORES, 4 * u_.count * KEYS));
    if (few()) {
      keep_queries();
    } else {
      pack_queries();
    }
    for (int64_t key = begin; key < end; key += KEYS) {
      int64_t keys = min(KEYS, end - key);
      if (few()) {
        few_scores(key, keys);
        weigh(key, keys);
        few_sums(key, keys);
      } else {
        tile_scores(key, keys);
        weigh(key, keys);
        tile_sums(key, keys);
      }
    }
  }

 private:
  using Kept = typename Dots::template Kept<T>;

  bool few() const { return u_.count <= FEW_QUERIES; }
  // With their weights, of 0.
  static int64_t whole(int64_t keys) {
    constexpr int64_t UNIT = W > Words::UNIT ? W : Words::UNIT;
    return divide_up(keys, UNIT) * UNIT;
  }

  const T* key_at(int64_t key) const { return u_.k + key * p_.k_strides[2]; }
  const T* value_at(int64_t key) const { return u_.v + key * p_.v_strides[2]; }

  void keep_queries() {
    if constexpr (sizeof(Kept) == sizeof(T)) {
      kept_ = u_.q;
      kept_row_ = u_.row;
    } else {
      float* wide = static_cast<float*>(scratch(QUERY, 4 * u_.count * p_.d));
      for (int64_t i = 0; i < u_.count; ++i) {
        for (int64_t j = 0; j < p_.d; ++j) {
          wide[i * p_.d + j] = to_float(u_.q[i * u_.row + j]);
        }
      }
      kept_ = wide;
      kept_row_ = p_.d;
    }
  }

  // Scores of R queries, W at a time: W / R keys, whose number divides KEYS.
  template <int R>
  void some_scores(int64_t query, int64_t key, int64_t keys) {
    constexpr int AT_ONCE = W / R;
    const Kept* q = kept_ + query * kept_row_;
    for (int64_t j = 0; j < keys; j += AT_ONCE) {
      vf products[AT_ONCE][R] = {};
      for (int64_t i = 0; i < min(AT_ONCE, keys - j); ++i) {
        dots<T, Dots, R>(p_.d, q, kept_row_, key_at(key + j + i), products[i]);
      }
      vf sorted[W];
      for (int r = 0; r < R; ++r) {
        for (int i = 0; i < AT_ONCE; ++i) {
          sorted[r * AT_ONCE + i] = products[i][r];
        }
      }
      float results[W];
      store(results, sums_of(sorted));
      for (int r = 0; r < R; ++r) {
        memcpy(scores_ + (query + r) * KEYS + j, results + r * AT_ONCE, 4 * AT_ONCE);
      }
    }
  }

  void few_scores(int64_t key, int64_t keys) {
    int64_t query = 0;
    for (; query + 4 <= u_.count; query += 4) {
      some_scores<4>(query, key, keys);
    }
    for (; query < u_.count; ++query) {
      some_scores<1>(query, key, keys);
    }
  }

  // Adds R queries' weighted values of VECTORS * W columns.
  template <int R, int V>
  void some_sums(int64_t query, int64_t key, int64_t keys, int64_t column) {
    float* out = part_.out + query * row_ + column;
    vf sum[R][V];
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) {
        sum[r][v] = load(out + r * row_ + v * W);
      }
    }
    for (int64_t j = 0; j < keys; ++j) {
      const T* value = value_at(key + j) + column;
      for (int v = 0; v < V; ++v) {
        int64_t left = p_.values - column - v * W;
        vf here = V > 1 || left >= W ? load(value + v * W) : load(value, left);
        for (int r = 0; r < R; ++r) {
          sum[r][v] += splat(scores_[(query + r) * KEYS + j]) * here;
        }
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) {
        store(out + r * row_ + v * W, sum[r][v]);
      }
    }
  }

  template <int R>
  void some_queries_sums(int64_t query, int64_t key, int64_t keys) {
    int64_t column = 0;
    for (; column + 4 * W <= p_.values; column += 4 * W) {
      some_sums<R, 4>(query, key, keys, column);
    }
    for (; column < p_.values; column += W) {
      some_sums<R, 1>(query, key, keys, column);
    }
  }

  void few_sums(int64_t key, int64_t keys) {
    int64_t query = 0;
    for (; query + 4 <= u_.count; query += 4) {
      some_queries_sums<4>(query, key, keys);
    }
    for (; query < u_.count; ++query) {
      some_queries_sums<1>(query, key, keys);
    }
  }

  int64_t strips() const { return Words::TILES ? 1 : divide_up(u_.count, ROWS); }
  int64_t first(int64_t strip) const { return u_.count * strip / strips(); }

  // Of k, for scores.
  int64_t steps() const {
    return divide_up(divide_up(p_.d, Words::VALUES), Words::UNIT) * Words::UNIT;
  }
  uint32_t* packed(int64_t strip) const {
    return packed_ + first(strip) * row_words<Words>(steps());
  }

  void pack_queries() {
    packed_ = static_cast<uint32_t*>(scratch(QUERY, 4 * u_.count * row_words<Words>(steps())));
    for (int64_t s = 0; s < strips(); ++s) {
      pack_rows<Words>(packed(s), first(s + 1) - first(s), u_.q + first(s) * u_.row, u_.row, 1,
                       p_.d, steps());
    }
  }

  void tile_scores(int64_t key, int64_t keys) {
    auto* strips_of_keys = static_cast<uint32_t*>(scratch(KEY, 4 * KEYS * steps()));
    for (int64_t j = 0; j < keys; j += COLUMNS) {
      uint32_t* to = strips_of_keys + j * steps();
      pack<Words>(to, COLUMNS, min(COLUMNS, keys - j), key_at(key + j), p_.k_strides[2], 1, p_.d);
      end_strip<Words>(to, p_.d, steps());
    }
    for (int64_t s = 0; s < strips(); ++s) {
      multiply_strips<Words>(first(s + 1) - first(s), steps(), packed(s), strips_of_keys,
                             divide_up(keys, COLUMNS), scores_ + first(s) * KEYS, KEYS, false);
    }
  }

  void tile_sums(int64_t key, int64_t keys) {
    int64_t steps = Words::TILES ? whole(keys) : keys;
    auto* values = static_cast<uint32_t*>(scratch(VALUE, 4 * KEYS * row_));
    pack_values<Words>(values, value_at(key), p_.v_strides[2], keys, steps, p_.values);
    auto* weights = reinterpret_cast<const uint32_t*>(scores_);
    for (int64_t s = 0; s < strips(); ++s) {
      multiply_strips<typename WeightsOf<Words>::Type, KEYS>(
          first(s + 1) - first(s), steps, weights + first(s) * KEYS, values, row_ / COLUMNS,
          part_.out + first(s) * row_, row_, true);
    }
  }

  // Turns a block of scores into weights relative to each query's largest score so far.
  void weigh(int64_t key, int64_t keys) {
    for (int64_t i = 0; i < u_.count; ++i) {
      float* scores = scores_ + i * KEYS;
      for (int64_t j = 0; j < keys; ++j) {
        scores[j] *= p_.scale;
      }
      apply_mask(i, key, keys, scores);
      hide(u_.position + i * u_.positions_step, key, keys, scores);
      for (int64_t j = keys; j < whole(keys); ++j) {
        scores[j] = LOWEST;
      }
      vf top = splat(part_.largest[i]);
      for (int64_t j = 0; j < keys; j += W) {
        top = larger(load(scores + j), top);
      }
      float most = largest(top), shift = most == LOWEST ? 0.0f : most;
      float factor = exponential(splat(part_.largest[i] - shift))[0];
      vf total = {};
      for (int64_t j = 0; j < whole(keys); j += W) {
        vf weight = exponential(load(scores + j) - shift);
        store(scores + j, Words::TILES && !few() ? halves(weight) : weight);
        total += weight;
      }
      part_.largest[i] = most;
      part_.sum[i] = part_.sum[i] * factor + sum(total);
      if (factor != 1.0f) {
        for (int64_t c = 0; c < row_; c += W) {
          store(part_.out + i * row_ + c, load(part_.out + i * row_ + c) * factor);
        }
      }
    }
  }

  void apply_mask(int64_t query, int64_t key, int64_t keys, float* scores) const {
    if (!u_.mask) {
      return;
    }
    int64_t step = p_.mask_strides[3], start = query * u_.mask_row + key * step;
    if (p_.boolean) {
      for (int64_t j = 0; j < keys; ++j) {
        scores[j] = u_.mask[start + j * step] ? scores[j] : LOWEST;
      }
      return;
    }
    with_type(p_.mask_type, [&](auto zero) {
      auto* mask = reinterpret_cast<const decltype(zero)*>(u_.mask) + start;
      for (int64_t j = 0; j < keys; ++j) {
        scores[j] += to_float(mask[j * step]);
      }
    });
  }

  // Keys after the query's position, and those before its window.
  void hide(int64_t position, int64_t key, int64_t keys, float* scores) const {
    int64_t begin = p_.window ? max(0, position - p_.window + 1 - key) : 0;
    int64_t end = p_.causal ? min(keys, position + 1 - key) : keys;
    for (int64_t j = 0; j < min(begin, keys); ++j) {
      scores[j] = LOWEST;
    }
    for (int64_t j = max(end, 0); j < keys; ++j) {
      scores[j] = LOWEST;
    }
  }

  const Attention& p_;
  const Queries<T>& u_;
  Part part_;
  int64_t row_;
  float* scores_ = nullptr;
  const Kept* kept_ = nullptr;
  int64_t kept_row_ = 0;
  uint32_t* packed_ = nullptr;
};

template <class T, class Words>
class Plan {
 public:
  explicit Plan(const Attention& p) : p_(p), row_(Unit<T, Words>::padded(p.values)) {
    token_ = p.queries == 1;
    heads_ = token_ ? p.kv_heads : p.heads;
    rows_ = token_ ? p.heads / p.kv_heads : p.queries;
    // Blocks of nearly equal height, tall enough for tiles.
    blocks_ = divide_up(rows_, Unit<T, Words>::QUERIES);
    units_ = p.batch * heads_ * blocks_;
    segments_ = 1;
    if (units_ < 3 * threads()) {
      segments_ = max(1, min(p.keys / SEGMENT, divide_up(4 * threads(), units_)));
    }
    height_ = divide_up(rows_, blocks_);
    // A query's largest score and sum beside its weighted sums.
    size_ = height_ * (row_ + 2);
  }

  void run() {
    // Shared by all threads where segments meet, one for each thread otherwise.
    float* shared = segments_ == 1 ? nullptr
                                   : static_cast<float*>(
                                         scratch(PARTS, 4 * units_ * segments_ * size_));
    parallel(units_ * segments_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t unit = i / segments_, segment = i % segments_;
        float* memory = shared ? shared + i * size_ : static_cast<float*>(scratch(PARTS, 4 * size_));
        attend(unit, segment, part(memory));
        if (!shared) {
          finish(unit, memory);
        }
      }
    });
    for (int64_t unit = 0; shared && unit < units_; ++unit) {
      merge(shared + unit * segments_ * size_);
      finish(unit, shared + unit * segments_ * size_);
    }
  }

 private:
  Part part(float* memory) const {
    return {memory, memory + height_, memory + 2 * height_};
  }

  int64_t valid(int64_t unit) const {
    int64_t batch = unit / blocks_ / heads_;
    return p_.lengths ? max(0, min(p_.lengths[batch], p_.keys)) : p_.keys;
  }

  Queries<T> queries(int64_t unit) const {
    int64_t block = unit % blocks_, head = unit / blocks_ % heads_, batch = unit / blocks_ / heads_;
    int64_t groups = p_.heads / p_.kv_heads;
    int64_t kv_head = token_ ? head : head / groups, q_head = token_ ? head * groups : head;
    int64_t first = rows_ * block / blocks_, count = rows_ * (block + 1) / blocks_ - first;
    int row = token_ ? 1 : 2;
    int64_t offset = p_.lengths ? valid(unit) - p_.queries : 0;
    int64_t item = p_.boolean ? 1 : p_.mask_type == Type::f32 ? 4 : 2;
    int64_t mask = batch * p_.mask_strides[0] + q_head * p_.mask_strides[1];
    return {
        .q = static_cast<const T*>(p_.q) + batch * p_.q_strides[0] + q_head * p_.q_strides[1] +
             first * p_.q_strides[row],
        .row = p_.q_strides[row],
        .count = count,
        .position = offset + (token_ ? 0 : first),
        .positions_step = token_ ? 0 : 1,
        .k = static_cast<const T*>(p_.k) + batch * p_.k_strides[0] + kv_head * p_.k_strides[1],
        .v = static_cast<const T*>(p_.v) + batch * p_.v_strides[0] + kv_head * p_.v_strides[1],
        .mask = p_.mask ? static_cast<const char*>(p_.mask) +
                              item * (mask + first * p_.mask_strides[row])
                        : nullptr,
        .mask_row = p_.mask_strides[row],
        .at = (batch * p_.heads + q_head) * p_.queries + first,
    };
  }

  void attend(int64_t unit, int64_t segment, Part part) {
    Queries<T> u = queries(unit);
    int64_t last = u.position + (u.count - 1) * u.positions_step;
    int64_t begin = p_.window ? max(0, u.position - p_.window + 1) : 0, end = valid(unit);
    end = p_.causal ? min(end, last + 1) : end;
    int64_t keys = max(0, end - begin);
    int64_t from = begin + keys * segment / segments_, to = begin + keys * (segment + 1) / segments_;
    Unit<T, Words>(p_, u, part).attend(from, to);
  }

  // The parts of a unit's segments into the first.
  void merge(float* memory) {
    Part first = part(memory);
    for (int64_t s = 1; s < segments_; ++s) {
      Part other = part(memory + s * size_);
      for (int64_t i = 0; i < height_; ++i) {
        float most = first.largest[i] > other.largest[i] ? first.largest[i] : other.largest[i];
        float shift = most == LOWEST ? 0.0f : most;
        float a = exponential(splat(first.largest[i] - shift))[0];
        float b = exponential(splat(other.largest[i] - shift))[0];
        first.largest[i] = most;
        first.sum[i] = first.sum[i] * a + other.sum[i] * b;
        for (int64_t c = i * row_; c < (i + 1) * row_; c += W) {
          store(first.out + c, load(first.out + c) * a + load(other.out + c) * b);
        }
      }
    }
  }

  // A query that may see nothing, or only NaN, gives 0.
  void finish(int64_t unit, float* memory) const {
    Part part = this->part(memory);
    Queries<T> u = queries(unit);
    for (int64_t i = 0; i < u.count; ++i) {
      T* out = static_cast<T*>(p_.out) + (u.at + i) * p_.values;
      auto* gate = p_.gate ? static_cast<const T*>(p_.gate) + (u.at + i) * p_.values : nullptr;
      bool alive = part.largest[i] > LOWEST;
      float factor = 1.0f / part.sum[i];
      for (int64_t c = 0; c < p_.values; c += W) {
        int64_t left = p_.values - c;
        vf value = alive ? load(part.out + i * row_ + c) * factor : vf{};
        if (gate) {
          vf open = left >= W ? load(gate + c) : load(gate + c, left);
          value = value / (1.0f + exponential(-open));
        }
        if (left >= W) {
          store(out + c, value);
        } else {
          store(out + c, value, left);
        }
      }
    }
  }

  const Attention& p_;
  int64_t row_;
  bool token_;
  int64_t heads_, rows_, blocks_, units_, segments_, height_, size_;
};

}  // namespace

void attention(const Attention& p) {
  if (p.batch * p.heads * p.queries * p.values == 0) {
    return;
  }
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    with_words<T>([&](auto words) { Plan<T, decltype(words)>(p).run(); });
  });
}

}  // namespace torchmlx::ISA
