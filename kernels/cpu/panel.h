// Many rows of x times weights in another format: a strip of weights at a time is widened into
// packed words and multiplied by all rows.
#pragma once

#include "dots.h"
#include "tile.h"

namespace torchmlx::ISA {

// out[m, n], contiguous, = x[m, k] times weights [n, k], plus bias[n] where there is one.
template <class T, class Format>
struct Panels {
  const T* x;
  int64_t x_row, x_k;
  const typename Format::Code* w;
  int64_t w_row;  // in codes
  Scales scales;
  T* out;
  const T* bias;
  int64_t m, n, k;
};

// Weights along k in a block, whose strips stay in the first two levels of cache.
constexpr int64_t PANEL_VALUES = 512;

// Rows that share a widened strip: their sums stay in the second level of cache.
constexpr int64_t PANEL_ROWS = 1024;

enum PanelSlot { PANEL_X = 2, PANEL_PACKED, PANEL_SUMS };

// A strip of `lanes` rows of weights, `count` along k, as `steps` steps of packed words; floats
// times the factor of each lane.
template <class Format, class Words>
static void pack_codes(uint32_t* to, int64_t lanes, const typename Format::Code* w, int64_t w_row,
                       int64_t count, int64_t steps, const float* factors) {
  for (int64_t lane = 0; lane < COLUMNS; lane += W) {
    for (int64_t at = 0, word = 0; at < count; at += Format::STEP, word += Format::PARTS * W) {
      vf read[W][Format::PARTS] = {};
      for (int64_t i = 0; i < min(W, lanes - lane); ++i) {
        const typename Format::Code* here = w + (lane + i) * w_row + at;
        if (count - at < Format::STEP) {
          read_rest<Format>(here, count - at, read[i]);
        } else {
          Format::read(here, read[i]);
        }
      }
      for (int part = 0; part < Format::PARTS; ++part) {
        vf rows[W];
        for (int i = 0; i < W; ++i) {
          rows[i] = Words::VALUES == 1 ? read[i][part] * factors[lane + i] : read[i][part];
        }
        transpose(rows);
        int64_t first = word + part * W;
        for (int64_t i = 0; i < min(W, steps - first); ++i) {
          write(to + (first + i) * COLUMNS + lane, rows[i]);
        }
      }
    }
  }
}

template <class T, class Words, class Format>
class Panel {
  using Kept = typename Words::template Kept<T>;
  // Floats take the scales at once; pairs of bf16 would round them, so their sums do.
  static constexpr bool EARLY = Words::VALUES == 1;

 public:
  explicit Panel(const Panels<T, Format>& p)
      : p_(p),
        block_(p.scales.length < p.k ? p.scales.length : PANEL_VALUES * Words::VALUES) {}

  void compute() {
    for (row_ = 0; row_ < p_.m; row_ += PANEL_ROWS) {
      rows_ = min(PANEL_ROWS, p_.m - row_);
      strips_ = divide_up(rows_, ROWS);
      pack_rows();
      parallel(divide_up(p_.n, COLUMNS), 1, [&](int64_t begin, int64_t end) {
        for (int64_t strip = begin; strip < end; ++strip) {
          multiply(strip * COLUMNS, min(COLUMNS, p_.n - strip * COLUMNS));
        }
      });
    }
  }

 private:
  int64_t first_row(int64_t strip) const { return rows_ * strip / strips_; }
  // Steps of the block of k that begins there: whole steps of the format.
  int64_t steps_in(int64_t begin) const {
    return arranged<Format>(min(block_, p_.k - begin));
  }
  uint32_t* packed(int64_t begin, int64_t strip) const {
    return packed_ + begin / Format::STEP * Format::PARTS * W * rows_ +
           first_row(strip) * steps_in(begin);
  }

  void pack_rows() {
    int64_t words = arranged<Format>(p_.k);
    packed_ = static_cast<uint32_t*>(scratch(PANEL_X, 4 * rows_ * words));
    parallel(strips_, 4, [&](int64_t first, int64_t last) {
      for (int64_t strip = first; strip < last; ++strip) {
        int64_t row = first_row(strip), height = first_row(strip + 1) - row;
        const T* from = p_.x + (row_ + row) * p_.x_row;
        const uint32_t* x =
            arrange_rows<Format, Words>(PANEL_SUMS, from, p_.x_row, p_.x_k, height, p_.k);
        for (int64_t begin = 0; begin < p_.k; begin += block_) {
          int64_t word = begin / Format::STEP * Format::PARTS * W;
          pack<Words>(packed(begin, strip), static_cast<int>(height), height,
                      reinterpret_cast<const Kept*>(x + word), words * Words::VALUES, 1,
                      steps_in(begin) * Words::VALUES);
        }
      }
    });
  }

  void multiply(int64_t column, int64_t columns) {
    auto* packed_b = static_cast<uint32_t*>(scratch(PANEL_PACKED, 4 * COLUMNS * steps_in(0)));
    auto* sums = static_cast<float*>(scratch(PANEL_SUMS, 4 * COLUMNS * rows_));
    const float* scales[COLUMNS];
    for (int64_t c = 0; c < COLUMNS; ++c) {
      scales[c] = p_.scales.of(column + min(c, columns - 1));
    }
    for (int64_t begin = 0; begin < p_.k; begin += block_) {
      float factors[COLUMNS];
      for (int64_t c = 0; c < COLUMNS; ++c) {
        factors[c] = scales[c][begin / p_.scales.length] * Format::FACTOR;
      }
      int64_t count = min(block_, p_.k - begin);
      const typename Format::Code* w = p_.w + column * p_.w_row + begin;
      pack_codes<Format, Words>(packed_b, columns, w, p_.w_row, count, steps_in(begin), factors);
      for (int64_t strip = 0; strip < strips_; ++strip) {
        int64_t top = first_row(strip), height = first_row(strip + 1) - top;
        add_tile(sums + top * COLUMNS, height, packed(begin, strip), packed_b, steps_in(begin),
                 factors, begin > 0);
      }
    }
    if constexpr (Format::SPECIAL) {
      for (int64_t c = 0; c < columns; ++c) {
        if (Format::has_nan(p_.w + (column + c) * p_.w_row, p_.k)) {
          for (int64_t r = 0; r < rows_; ++r) {
            sums[r * COLUMNS + c] = __builtin_nanf("");
          }
        }
      }
    }
    for (int64_t r = 0; r < rows_; ++r) {
      finish(sums + r * COLUMNS, p_.out + (row_ + r) * p_.n + column, column, columns);
    }
  }

  static void add_tile(float* sums, int64_t height, const uint32_t* a, const uint32_t* b,
                       int64_t steps, const float* factors, bool resume) {
    if (EARLY) {
      return tile_of<Words>(height)(steps, a, b, sums, COLUMNS, resume);
    }
    float part[ROWS * COLUMNS];
    tile_of<Words>(height)(steps, a, b, part, COLUMNS, false);
    for (int64_t r = 0; r < height; ++r) {
      for (int v = 0; v < COLUMNS; v += W) {
        int64_t at = r * COLUMNS + v;
        vf value = load(part + at) * load(factors + v);
        store(sums + at, resume ? load(sums + at) + value : value);
      }
    }
  }

  void finish(const float* sums, T* out, int64_t column, int64_t columns) const {
    const T* bias = p_.bias ? p_.bias + column : nullptr;
    for (int64_t c = 0; c < columns; c += W) {
      vf value = load(sums + c);
      int64_t left = columns - c;
      if (left >= W) {
        store(out + c, bias ? value + load(bias + c) : value);
      } else {
        store(out + c, bias ? value + load(bias + c, left) : value, left);
      }
    }
  }

  const Panels<T, Format>& p_;
  int64_t block_;
  int64_t row_ = 0, rows_ = 0, strips_ = 0;
  uint32_t* packed_ = nullptr;
};

}  // namespace torchmlx::ISA
