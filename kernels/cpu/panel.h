// Many rows of x times weights in another format: some strips of weights at a time are widened into
// packed words and multiplied by all rows.
#pragma once

#include "dots.h"
#include "tile.h"

namespace torchmlx::ISA {

// Weights along k in a block, whose strips stay in the first two levels of cache.
constexpr int64_t PANEL_VALUES = 512;

// Rows that share widened strips: their sums stay in the second level of cache.
constexpr int64_t PANEL_ROWS = 1024;

// Strips that are widened at a time. Tiles are so fast that rows, which come from the last-level
// cache, have to meet several.
template <class Words>
constexpr int PANEL_STRIPS = Words::TILES ? 4 : 1;

template <class Words>
constexpr int PANEL_COLUMNS = PANEL_STRIPS<Words> * Words::COLUMNS;

enum PanelSlot { PANEL_X = 2, PANEL_PACKED, PANEL_SUMS };

// A format with all parts of a lane behind one another, so that each group along k has words of its
// own.
template <class Format, class Words>
struct ByLanes : Format {
  INLINE constexpr int64_t place(int64_t i) {
    constexpr int64_t VALUES = Words::VALUES;
    int64_t at = Format::place(i), word = at / VALUES;
    return (word % W * Format::PARTS + word / W) * VALUES + at % VALUES;
  }
};

// Strips of `columns` rows of weights, `count` along k, as `steps` steps of packed words each.
// read(i, at, parts) reads the step of row i that begins `at` codes from the first.
template <class Format, class Words, class Read>
INLINE void pack_codes(uint32_t* strip, int64_t columns, int64_t count, int64_t steps,
                       const Read& read_step) {
  constexpr int COLUMNS = Words::COLUMNS;
  for (int64_t lane = 0; lane < divide_up(columns, COLUMNS) * COLUMNS; lane += W) {
    uint32_t* to = strip + lane / COLUMNS * COLUMNS * steps + lane % COLUMNS;
    for (int64_t at = 0, word = 0; at < count; at += Format::STEP, word += Format::PARTS * W) {
      vf rows[Format::PARTS][W] = {};
      for (int64_t i = 0; i < min(W, columns - lane); ++i) {
        vf parts[Format::PARTS];
        read_step(lane + i, at, parts);
        for (int part = 0; part < Format::PARTS; ++part) {
          rows[part][i] = parts[part];
        }
      }
      for (int part = 0; part < Format::PARTS; ++part) {
        transpose(rows[part]);
        for (int64_t i = 0; i < W; ++i) {
          int64_t step = word + i * Format::PARTS + part;
          if (step < steps) {
            write(to + step * COLUMNS, rows[part][i]);
          }
        }
      }
    }
  }
}

// Some rows of x and strips of weights, packed: the same steps along k of both.
template <class Words>
struct PackedBlock {
  const uint32_t *a, *b;
  int64_t rows, steps, strips;

  // Floats of a row of sums.
  int64_t width() const { return Words::TILES ? strips * Words::COLUMNS : Words::COLUMNS; }

  // sums[rows][width()] over `count` steps from `step` on.
  INLINE_LAMBDA void multiply(int64_t step, int64_t count, float* sums, bool resume) const {
    if constexpr (Words::TILES) {
      multiply_tiles({a + step, b + step * Words::COLUMNS, sums, tile_pitch(steps),
                      steps * Words::COLUMNS, width(), rows, count, strips, resume});
    } else {
      tile_of<Words>(rows)(count, a + step * rows, b + step * COLUMNS, sums, COLUMNS, resume);
    }
  }
};

// x [m, k] times weights [n, k], sums in floats. Weights has
//   Format           ByLanes of what the codes are;
//   block()          weights along k that are widened at a time, whole steps and groups;
//   Strips(weights, column, columns), of up to PANEL_COLUMNS, which has
//     pack(to, begin, count, steps)   the words of `count` weights along k from `begin` on;
//     add(sums, row, packed, resume)  their products with rows from `row` on;
//     spoils(c)                       whether all sums of its column c are NaN.
// keep(sums, row, column, columns) takes finished sums of one row.
template <class T, class Words, class Weights, class Keep>
class Panel {
  using Format = typename Weights::Format;
  using Kept = typename Words::template Kept<T>;
  static constexpr int ROWS = Words::ROWS, COLUMNS = Words::COLUMNS;

 public:
  Panel(const T* x, int64_t x_row, int64_t x_k, int64_t m, int64_t n, int64_t k,
        const Weights& weights, const Keep& keep)
      : x_(x), x_row_(x_row), x_k_(x_k), m_(m), n_(n), k_(k), block_(weights.block()),
        weights_(weights), keep_(keep) {}

  void compute() {
    for (row_ = 0; row_ < m_; row_ += PANEL_ROWS) {
      rows_ = min(PANEL_ROWS, m_ - row_);
      strips_ = divide_up(rows_, ROWS);
      pack_rows();
      int64_t columns = columns_of_task();
      parallel(divide_up(n_, columns), 1, [&](int64_t begin, int64_t end) {
        for (int64_t column = begin * columns; column < min(end * columns, n_); column += columns) {
          multiply(column, min(columns, n_ - column));
        }
      });
    }
  }

 private:
  int64_t first_row(int64_t strip) const { return rows_ * strip / strips_; }
  // Steps of the block of k that begins there: whole steps of the format.
  int64_t steps_in(int64_t begin) const { return arranged<Format>(min(block_, k_ - begin)); }
  uint32_t* packed(int64_t begin, int64_t strip) const {
    return packed_ + begin / block_ * row_words<Words>(steps_in(0)) * rows_ +
           first_row(strip) * row_words<Words>(steps_in(begin));
  }

  // Wide tasks, unless that leaves a thread without work.
  int64_t columns_of_task() const {
    int64_t columns = PANEL_COLUMNS<Words>;
    while (columns > COLUMNS && divide_up(n_, columns) < 3 * threads()) {
      columns /= 2;
    }
    return columns;
  }

  void pack_rows() {
    int64_t words = divide_up(k_, block_) * row_words<Words>(steps_in(0));
    packed_ = static_cast<uint32_t*>(scratch(PANEL_X, 4 * rows_ * words));
    parallel(strips_, 4, [&](int64_t first, int64_t last) {
      for (int64_t strip = first; strip < last; ++strip) {
        int64_t row = first_row(strip);
        pack_strip(strip, x_ + (row_ + row) * x_row_, first_row(strip + 1) - row);
      }
    });
  }

  void pack_strip(int64_t strip, const T* from, int64_t height) const {
    if constexpr (Words::TILES) {
      for (int64_t begin = 0; begin < k_; begin += block_) {
        for (int64_t r = 0; r < height; ++r) {
          arrange<Format, Words>(packed(begin, strip) + r * row_words<Words>(steps_in(begin)),
                                 from + r * x_row_ + begin * x_k_, x_k_, min(block_, k_ - begin));
        }
      }
      return;
    }
    const uint32_t* x = arrange_rows<Format, Words>(PANEL_SUMS, from, x_row_, x_k_, height, k_);
    for (int64_t begin = 0; begin < k_; begin += block_) {
      int64_t word = begin / Format::STEP * Format::PARTS * W;
      pack<Words>(packed(begin, strip), static_cast<int>(height), height,
                  reinterpret_cast<const Kept*>(x + word), arranged<Format>(k_) * Words::VALUES, 1,
                  steps_in(begin) * Words::VALUES);
    }
  }

  void multiply(int64_t column, int64_t columns) {
    int64_t strips = divide_up(columns, COLUMNS), width = strips * COLUMNS;
    auto* packed_b = static_cast<uint32_t*>(scratch(PANEL_PACKED, 4 * width * steps_in(0)));
    auto* sums = static_cast<float*>(scratch(PANEL_SUMS, 4 * width * rows_));
    for (int64_t i = 0; k_ == 0 && i < width * rows_; ++i) {
      sums[i] = 0.0f;
    }
    typename Weights::Strips weights(weights_, column, columns);
    for (int64_t begin = 0; begin < k_; begin += block_) {
      int64_t steps = steps_in(begin);
      weights.pack(packed_b, begin, min(block_, k_ - begin), steps);
      for (int64_t strip = 0; strip < strips_; ++strip) {
        int64_t top = first_row(strip), height = first_row(strip + 1) - top;
        weights.add(sums + top * width, row_ + top,
                    {packed(begin, strip), packed_b, height, steps, strips}, begin > 0);
      }
    }
    for (int64_t c = 0; c < columns; ++c) {
      for (int64_t r = weights.spoils(c) ? 0 : rows_; r < rows_; ++r) {
        sums[r * width + c] = __builtin_nanf("");
      }
    }
    for (int64_t r = 0; r < rows_; ++r) {
      keep_(sums + r * width, row_ + r, column, columns);
    }
  }

  const T* x_;
  int64_t x_row_, x_k_, m_, n_, k_, block_;
  const Weights& weights_;
  const Keep& keep_;
  int64_t row_ = 0, rows_ = 0, strips_ = 0;
  uint32_t* packed_ = nullptr;
};

// sums += factors times those of `count` steps, or that alone. `change` has a last word on what is
// added.
template <class Words, class Change>
INLINE void add_scaled(float* sums, const PackedBlock<Words>& packed, int64_t step, int64_t count,
                       const float* factors, bool resume, const Change& change) {
  float part[Words::ROWS * PANEL_COLUMNS<Words>];
  packed.multiply(step, count, part, false);
  const int64_t width = packed.width();
  for (int64_t r = 0; r < packed.rows; ++r) {
    for (int64_t v = 0; v < width; v += W) {
      int64_t at = r * width + v;
      vf value = change(load(part + at) * load(factors + v), r, v);
      store(sums + at, resume ? load(sums + at) + value : value);
    }
  }
}

// Calls f with the words of products of many rows of T: codes become pairs for AVX-512 alone, which
// all processors with AMX have.
template <class T, class F>
INLINE void with_panel_words(const F& f) {
#if defined(__AVX512BF16__)
  with_words<T>(f);
#else
  f(typename WordsOf<T>::Type{});
#endif
}

// Rounds finished sums to rows of n.
template <class T>
struct Rounded {
  T* out;
  const T* bias;  // may be null
  int64_t n;

  void operator()(const float* sums, int64_t row, int64_t column, int64_t columns) const {
    T* to = out + row * n + column;
    const T* terms = bias ? bias + column : nullptr;
    for (int64_t c = 0; c < columns; c += W) {
      vf value = load(sums + c);
      int64_t left = columns - c;
      if (left >= W) {
        store(to + c, terms ? value + load(terms + c) : value);
      } else {
        store(to + c, terms ? value + load(terms + c, left) : value, left);
      }
    }
  }
};

}  // namespace torchmlx::ISA
