// A mixture of experts: places (a token's slots) are sorted by expert, so that the weights of each
// chosen expert are read once for up to MOST_ROWS places. Two loops over rows of weights: gate, up
// and SwiGLU; then down with the weighted sum. What lies between is float32.
#include "moe_decode.h"

#include "dots.h"
#include "functions.h"

namespace torchmlx::ISA {
namespace {

enum { TABLES, SCALES, X, HIDDEN, TOTALS };

// Rows of weights of a task: at least enough to hide the cost of handing it out, at most what a
// task keeps the sums of.
constexpr int64_t LEAST = 8, MOST = MOST_COLUMNS / 2;

// Places that share an expert: order[first .. first + count].
struct Run {
  int64_t expert, first, count;
};

template <class T, class Up, class Words, class Down>
class Mixture {
 public:
  Mixture(const MoeDecode& p) : p_(p), width_(arranged<Down>(p.inner)) {}

  void compute() {
    sort_places();
    widen_scales();
    x_ = arrange_rows<Up, Words>(X, static_cast<const T*>(p_.x), p_.k, 1, p_.tokens, p_.k);
    int64_t places = p_.tokens * p_.slots;
    hidden_ = static_cast<float*>(scratch(HIDDEN, 4 * places * width_));
    totals_ = static_cast<float*>(scratch(TOTALS, 4 * p_.tokens * p_.k));
    int64_t rows = rows_of_task(runs_count_ * p_.inner), chunks = divide_up(p_.inner, rows);
    parallel(runs_count_ * chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        int64_t first = task % chunks * rows;
        up(runs_[task / chunks], first, min(first + rows, p_.inner));
      }
    });
    rows = rows_of_task(p_.k);
    parallel(divide_up(p_.k, rows), 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        down(task * rows, min((task + 1) * rows, p_.k));
      }
    });
  }

 private:
  static int64_t rows_of_task(int64_t rows) {
    return max(LEAST, min(MOST, divide_up(rows, 8 * threads())));
  }

  void sort_places() {
    int64_t places = p_.tokens * p_.slots;
    size_t bytes = sizeof(Run) * places + sizeof(int64_t) * (places + p_.experts + 1);
    runs_ = static_cast<Run*>(scratch(TABLES, bytes));
    order_ = reinterpret_cast<int64_t*>(runs_ + places);
    int64_t* next = order_ + places;
    memset(next, 0, sizeof(int64_t) * (p_.experts + 1));
    for (int64_t i = 0; i < places; ++i) {
      if (exists(p_.indices[i])) {
        ++next[p_.indices[i] + 1];
      }
    }
    for (int64_t e = 0; e < p_.experts; ++e) {
      for (int64_t first = 0; first < next[e + 1]; first += MOST_ROWS) {
        runs_[runs_count_++] = {e, next[e] + first, min(MOST_ROWS, next[e + 1] - first)};
      }
      next[e + 1] += next[e];
    }
    for (int64_t i = 0; i < places; ++i) {
      if (exists(p_.indices[i])) {
        order_[next[p_.indices[i]]++] = i;
      }
    }
  }

  bool exists(int32_t expert) const { return expert >= 0 && expert < p_.experts; }

  void widen_scales() {
    if (!p_.codes) {
      ones_[0] = 1.0f;
      up_scales_ = down_scales_ = ones_;
      return;
    }
    int64_t up_count = p_.up_scale.count;
    auto* wide = static_cast<float*>(scratch(SCALES, 4 * (up_count + p_.down_scale.count)));
    with_type(p_.scale_type, [&](auto zero) {
      using S = decltype(zero);
      for (int64_t i = 0; i < up_count; ++i) {
        wide[i] = to_float(static_cast<const S*>(p_.up_scale.values)[i]);
      }
      for (int64_t i = 0; i < p_.down_scale.count; ++i) {
        wide[up_count + i] = to_float(static_cast<const S*>(p_.down_scale.values)[i]);
      }
    });
    up_scales_ = wide;
    down_scales_ = wide + up_count;
  }

  static Scales scales_of(const MoeDecode::Scaling& s, const float* wide, int64_t expert,
                          int64_t k) {
    return {wide + expert * s.group, s.height, s.row, min(s.length, k)};
  }

  // Hidden values [begin, end) of a run's places.
  void up(const Run& run, int64_t begin, int64_t end) {
    const uint32_t* rows[MOST_ROWS];
    for (int64_t r = 0; r < run.count; ++r) {
      rows[r] = x_ + order_[run.first + r] / p_.slots * arranged<Up>(p_.k);
    }
    auto* w = static_cast<const typename Up::Code*>(p_.gate_up) + run.expert * 2 * p_.inner * p_.k;
    Scales scales = scales_of(p_.up_scale, up_scales_, run.expert, p_.k);
    // Whole vectors: what no row fills is not used.
    float gate[MOST * MOST_ROWS] = {}, up[MOST * MOST_ROWS] = {};
    all_dots<Up, Words>(p_.k, rows, run.count, w, p_.k, begin, end, scales, gate);
    all_dots<Up, Words>(p_.k, rows, run.count, w, p_.k, p_.inner + begin, p_.inner + end, scales,
                        up);
    for (int64_t i = 0; i < (end - begin) * MOST_ROWS; i += W) {
      vf g = load(gate + i);
      store(gate + i, g / (1.0f + exponential(-g)) * load(up + i));
    }
    for (int64_t r = 0; r < run.count; ++r) {
      float* hidden = hidden_ + order_[run.first + r] * width_;
      for (int64_t i = begin; i < end; ++i) {
        hidden[i] = gate[(i - begin) * MOST_ROWS + r];
      }
      for (int64_t i = p_.inner; end == p_.inner && i < width_; ++i) {
        hidden[i] = 0.0f;
      }
    }
  }

  // Outputs [begin, end) of all tokens.
  void down(int64_t begin, int64_t end) {
    for (int64_t t = 0; t < p_.tokens; ++t) {
      memset(totals_ + t * p_.k + begin, 0, 4 * (end - begin));
    }
    for (int64_t i = 0; i < runs_count_; ++i) {
      add_run(runs_[i], begin, end);
    }
    for (int64_t t = 0; t < p_.tokens; ++t) {
      const float* totals = totals_ + t * p_.k;
      T* out = static_cast<T*>(p_.out) + t * p_.k;
      for (int64_t c = begin; c < end; c += W) {
        int64_t left = end - c;
        if (left >= W) {
          store(out + c, load(totals + c));
        } else {
          store(out + c, load(totals + c, left), left);
        }
      }
    }
  }

  void add_run(const Run& run, int64_t begin, int64_t end) {
    const uint32_t* rows[MOST_ROWS];
    for (int64_t r = 0; r < run.count; ++r) {
      rows[r] = reinterpret_cast<const uint32_t*>(hidden_ + order_[run.first + r] * width_);
    }
    auto* w = static_cast<const typename Down::Code*>(p_.down) + run.expert * p_.k * p_.inner;
    Scales scales = scales_of(p_.down_scale, down_scales_, run.expert, p_.inner);
    float sums[MOST * MOST_ROWS];
    all_dots<Down, Floats>(p_.inner, rows, run.count, w, p_.inner, begin, end, scales, sums);
    for (int64_t r = 0; r < run.count; ++r) {
      int64_t place = order_[run.first + r];
      float weight = 0.0f;
      with_type(p_.weights_type, [&](auto zero) {
        weight = to_float(static_cast<const decltype(zero)*>(p_.weights)[place]);
      });
      float* totals = totals_ + place / p_.slots * p_.k;
      for (int64_t c = begin; c < end; ++c) {
        totals[c] += weight * sums[(c - begin) * MOST_ROWS + r];
      }
    }
  }

  const MoeDecode& p_;
  int64_t width_;  // of a row of hidden values
  Run* runs_ = nullptr;
  int64_t runs_count_ = 0;
  int64_t* order_ = nullptr;
  float ones_[1];
  const float *up_scales_ = nullptr, *down_scales_ = nullptr;
  const uint32_t* x_ = nullptr;
  float *hidden_ = nullptr, *totals_ = nullptr;
};

}  // namespace

void moe_decode(const MoeDecode& p) {
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    using Words = typename WordsOf<T>::Type;
    if (p.codes) {
      Mixture<T, LongE4m3<Words>, Words, E4m3<Floats>>(p).compute();
    } else {
      Mixture<T, Plain<T, Words>, Words, Plain<T, Floats>>(p).compute();
    }
  });
}

}  // namespace torchmlx::ISA
