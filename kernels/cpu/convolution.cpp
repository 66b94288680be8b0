// Convolution over frames, rows and columns, channels last: a matrix product whose left side, a row
// for each pixel of the result, is read from the image as it is needed.
#include "convolution.h"

#include "matmul.h"
#include "tile.h"

namespace torchmlx::ISA {
namespace {

// Steps of k in a block: a strip of pixels stays in the first-level cache (14 x 512 words are
// 28 KiB), the weights of BLOCK_COLUMNS columns in the second (512 KiB).
constexpr int64_t STEPS = 512;
constexpr int64_t BLOCK_COLUMNS = 256 / COLUMNS * COLUMNS;

// Pixels of a task: packed weights serve all of them, their sums wait in memory between blocks.
constexpr int64_t MOST_PIXELS = 1024, LEAST_PIXELS = 16 * ROWS;

// Multiply-adds below which threads cost more than they bring.
constexpr int64_t SMALL = 1 << 16;

// Channels below which the taps of a row are taken together, where they lie together: a vector each
// would be mostly empty. Such a piece has at most EDGE values.
constexpr int64_t FEW_CHANNELS = 2 * W, EDGE = 256;

// Vectors that hold a word of each pixel of a strip.
constexpr int LANES = (ROWS + W - 1) / W;

// A part of k that lies together in memory: values of one tap, or of a row of taps.
struct Piece {
  int64_t tap[3];
  int64_t value, values;
  int64_t step, steps;  // of k, in words
};

// A pixel of the result.
struct Pixel {
  int64_t batch, at[3];

  void next(const int64_t* out) {
    int i = 2;
    while (++at[i] == out[i] && i > 0) {
      at[i--] = 0;
    }
    if (at[0] == out[0]) {
      at[0] = 0;
      ++batch;
    }
  }
};

// Consecutive frames of the result that meet the same taps along the first axis, and a group.
template <class T, class Words>
class Frames {
 public:
  Frames(const Convolution& p, int64_t first, int64_t count, int64_t first_tap, int64_t last_tap,
         int64_t group)
      : p_(p), first_pixel_(first * p.out[1] * p.out[2]), pixels_(count * p.out[1] * p.out[2]),
        first_tap_(first_tap), channels_(p.channels / p.groups), columns_(p.columns / p.groups),
        group_(group) {
    together_ = channels_ < FEW_CHANNELS && p.groups == 1 && p.dilation[2] == 1 && !p.upsample &&
                (p.kernel[2] == 1 || p.w_tap[2] == channels_ * p.w_channel);
    run_ = together_ ? p.kernel[2] * channels_ : channels_;
    row_taps_ = together_ ? 1 : p.kernel[2];
    int64_t most = together_ ? EDGE / Words::VALUES : STEPS;
    parts_ = max(1, divide_up(divide_up(run_, Words::VALUES), most));
    pieces_ = run_ ? (last_tap - first_tap) * p.kernel[1] * row_taps_ * parts_ : 0;
  }

  void compute() {
    choose_tasks();
    int64_t tasks = pixel_tasks_ * column_tasks_;
    bool small = pixels_ * columns_ * pieces_ * run_ < SMALL * parts_;
    parallel(tasks, small ? tasks : 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        run(task / column_tasks_, task % column_tasks_);
      }
    });
  }

 private:
  // Large tasks, unless that leaves a thread without work.
  void choose_tasks() {
    int64_t wanted = 4 * threads(), strips = divide_up(columns_, COLUMNS);
    block_columns_ = divide_up(strips, divide_up(columns_, BLOCK_COLUMNS)) * COLUMNS;
    column_tasks_ = divide_up(columns_, block_columns_);
    int64_t pixels = divide_up(pixels_ * column_tasks_, wanted);
    pixels = max(LEAST_PIXELS, min(MOST_PIXELS, pixels));
    pixel_tasks_ = divide_up(pixels_, pixels);
    while (pixel_tasks_ * column_tasks_ < wanted && block_columns_ > COLUMNS) {
      block_columns_ = divide_up(block_columns_ / COLUMNS, 2) * COLUMNS;
      column_tasks_ = divide_up(columns_, block_columns_);
    }
  }

  Piece piece(int64_t index, int64_t step) const {
    int64_t part = index % parts_, tap = index / parts_, words = divide_up(run_, Words::VALUES);
    int64_t begin = words * part / parts_, end = words * (part + 1) / parts_;
    int64_t value = begin * Words::VALUES, stop = min(run_, end * Words::VALUES);
    return {{first_tap_ + tap / (p_.kernel[1] * row_taps_), tap / row_taps_ % p_.kernel[1],
             tap % row_taps_},
            value, stop - value, step, end - begin};
  }

  Pixel pixel(int64_t index) const {
    const int64_t* n = p_.out;
    return {index / (n[0] * n[1] * n[2]),
            {index / (n[1] * n[2]) % n[0], index / n[2] % n[1], index % n[2]}};
  }

  // The values that a piece meets; null for padding. `edge` takes those that are partly padding.
  const T* meet(const Pixel& pixel, const Piece& piece, T* edge) const {
    int64_t at[3];
    for (int i = 0; i < 3; ++i) {
      at[i] = pixel.at[i] * p_.stride[i] - p_.before[i] + piece.tap[i] * p_.dilation[i];
    }
    if (at[0] < -p_.cached || at[0] >= p_.in[0] || at[1] < 0) {
      return nullptr;
    }
    at[1] >>= p_.upsample;
    if (at[1] >= p_.in[1]) {
      return nullptr;
    }
    bool before = at[0] < 0;
    int64_t frame = before ? (pixel.batch + 1) * p_.cached + at[0] : pixel.batch * p_.in[0] + at[0];
    const T* row = static_cast<const T*>(before ? p_.cache : p_.x) +
                   (frame * p_.in[1] + at[1]) * p_.in[2] * p_.channels;
    if (together_) {
      return meet_row(row, at[2] * channels_ + piece.value, piece.values, edge);
    }
    if (at[2] < 0 || (at[2] >>= p_.upsample) >= p_.in[2]) {
      return nullptr;
    }
    return row + at[2] * p_.channels + group_ * channels_ + piece.value;
  }

  // Values `begin` and on of a row; outside of it are zeros.
  const T* meet_row(const T* row, int64_t begin, int64_t values, T* edge) const {
    int64_t end = begin + values, inside = min(end, p_.in[2] * channels_);
    if (begin >= 0 && end == inside) {
      return row + begin;
    }
    int64_t first = max(begin, 0);
    if (first >= inside) {
      return nullptr;
    }
    memset(edge, 0, values * sizeof(T));
    memcpy(edge + (first - begin), row + first, (inside - first) * sizeof(T));
    return edge;
  }

  void run(int64_t pixel_task, int64_t column_task) {
    int64_t begin = pixels_ * pixel_task / pixel_tasks_;
    int64_t end = pixels_ * (pixel_task + 1) / pixel_tasks_, strips = divide_up(end - begin, ROWS);
    int64_t column = column_task * block_columns_;
    int64_t columns = min(block_columns_, columns_ - column);
    int64_t row = divide_up(columns, COLUMNS) * COLUMNS;
    auto* weights = static_cast<uint32_t*>(scratch(B, 4 * STEPS * row));
    auto* image = static_cast<uint32_t*>(scratch(A, 4 * (STEPS * ROWS + LANES * W)));
    auto* sums = static_cast<float*>(scratch(SUMS, 4 * row * (end - begin)));
    int64_t done = 0;
    do {
      Piece block[STEPS];
      bool resume = done > 0;
      int count = 0;
      int64_t steps = 0;
      while (done < pieces_) {
        block[count] = piece(done, steps);
        if (steps + block[count].steps > STEPS) {
          break;
        }
        steps += block[count++].steps;
        ++done;
      }
      pack_weights(weights, steps, block, count, column, columns);
      for (int64_t strip = 0; strip < strips; ++strip) {
        int64_t first = begin + (end - begin) * strip / strips;
        int64_t rows = begin + (end - begin) * (strip + 1) / strips - first;
        float* here = sums + (first - begin) * row;
        pack_image(image, rows, pixel(first_pixel_ + first), block, count);
        Tile multiply = tile_of<Words>(rows);
        for (int64_t c = 0; c < row; c += COLUMNS) {
          multiply(steps, image, weights + c * steps, here + c, row, resume);
        }
        if (done == pieces_) {
          finish(pixel(first_pixel_ + first), rows, column, columns, here, row);
        }
      }
    } while (done < pieces_);
  }

  void pack_weights(uint32_t* to, int64_t steps, const Piece* block, int count, int64_t column,
                    int64_t columns) const {
    const T* from = static_cast<const T*>(p_.weights) + group_ * p_.w_group + column * p_.w_column;
    for (int64_t c = 0; c < columns; c += COLUMNS) {
      for (int i = 0; i < count; ++i) {
        const Piece& piece = block[i];
        int64_t at = c * p_.w_column + piece.value * p_.w_channel;
        for (int axis = 0; axis < 3; ++axis) {
          at += piece.tap[axis] * p_.w_tap[axis];
        }
        pack<Words>(to + c * steps + piece.step * COLUMNS, COLUMNS, min(COLUMNS, columns - c),
                    from + at, p_.w_column, p_.w_channel, piece.values);
      }
    }
  }

  void pack_image(uint32_t* to, int64_t rows, Pixel first, const Piece* block, int count) const {
    Pixel pixels[ROWS];
    for (int64_t r = 0; r < rows; ++r, first.next(p_.out)) {
      pixels[r] = first;
    }
    T edges[ROWS][EDGE];
    const T* lanes[LANES * W] = {};
    for (int i = 0; i < count; ++i) {
      for (int64_t r = 0; r < rows; ++r) {
        lanes[r] = meet(pixels[r], block[i], edges[r]);
      }
      pack_lanes(to + block[i].step * rows, rows, lanes, block[i].values);
    }
  }

  // As pack_along_k, of lanes that lie anywhere. Stores overlap the next step, which then
  // overwrites them; `to` has room for the last.
  static void pack_lanes(uint32_t* to, int64_t rows, const T* const* lanes, int64_t k) {
    int64_t steps = divide_up(k, Words::VALUES);
    for (int64_t step = 0; step < steps; step += W) {
      int64_t left = k - step * Words::VALUES, here = min(W, steps - step);
      vf words[LANES][W];
      for (int group = 0; group < LANES; ++group) {
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) {
          const T* lane = lanes[group * W + i];
          words[group][i] = lane ? load_words<Words>(lane + step * Words::VALUES, left) : vf{};
        }
        transpose(words[group]);
      }
      for (int64_t i = 0; i < here; ++i) {
        for (int group = 0; group < LANES; ++group) {
          store(reinterpret_cast<float*>(to) + (step + i) * rows + group * W, words[group][i]);
        }
      }
    }
  }

  // Rounds sums[rows][columns] plus bias to the result.
  void finish(Pixel at, int64_t rows, int64_t column, int64_t columns, const float* sums,
              int64_t row) const {
    column += group_ * columns_;
    const T* bias = p_.bias ? static_cast<const T*>(p_.bias) + column : nullptr;
    for (int64_t r = 0; r < rows; ++r, sums += row, at.next(p_.out)) {
      T* out = static_cast<T*>(p_.result) + at.batch * p_.result_batch + column;
      for (int axis = 0; axis < 3; ++axis) {
        out += at.at[axis] * p_.result_step[axis];
      }
      int64_t c = 0;
      for (; c + W <= columns; c += W) {
        vf value = load(sums + c);
        store(out + c, bias ? value + load(bias + c) : value);
      }
      if (c < columns) {
        vf value = load(sums + c);
        store(out + c, bias ? value + load(bias + c, columns - c) : value, columns - c);
      }
    }
  }

  const Convolution& p_;
  int64_t first_pixel_, pixels_, first_tap_, channels_, columns_, group_;
  bool together_;
  int64_t run_, row_taps_;  // values that lie together; such runs in a row of taps
  int64_t parts_, pieces_;  // of a run, and in all
  int64_t block_columns_ = 0, column_tasks_ = 0, pixel_tasks_ = 0;
};

// The taps along the first axis that meet a frame of x or of the cache: first and last + 1.
void useful(const Convolution& p, int64_t frame, int64_t* first, int64_t* last) {
  int64_t start = frame % p.out[0] * p.stride[0] - p.before[0];
  *first = *last = 0;
  for (int64_t tap = 0; tap < p.kernel[0]; ++tap) {
    int64_t d = start + tap * p.dilation[0];
    if (d >= -p.cached && d < p.in[0]) {
      *first = *last ? *first : tap;
      *last = tap + 1;
    }
  }
}

template <class T, class Words>
void all_frames(const Convolution& p) {
  int64_t frames = p.batch * p.out[0], first, last, next_first, next_last;
  useful(p, 0, &first, &last);
  for (int64_t begin = 0, end = 1; begin < frames; begin = end++) {
    for (; end < frames; ++end) {
      useful(p, end, &next_first, &next_last);
      if (next_first != first || next_last != last) {
        break;
      }
    }
    for (int64_t group = 0; group < p.groups; ++group) {
      Frames<T, Words>(p, begin, end - begin, first, last, group).compute();
    }
    first = next_first;
    last = next_last;
  }
}

// Every channel by itself: nothing to multiply as matrices.
template <class T>
class Depthwise {
 public:
  explicit Depthwise(const Convolution& p) : p_(p), row_(divide_up(p.channels, W) * W) {
    int64_t taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    auto* weights = static_cast<float*>(scratch(B, 4 * taps * row_));
    weights_ = weights;
    auto* from = static_cast<const T*>(p.weights);
    for (int64_t tap = 0; tap < taps; ++tap) {
      int64_t at = tap / (p.kernel[1] * p.kernel[2]) * p.w_tap[0] +
                   tap / p.kernel[2] % p.kernel[1] * p.w_tap[1] + tap % p.kernel[2] * p.w_tap[2];
      for (int64_t c = 0; c < row_; ++c) {
        *weights++ = c < p.channels ? to_float(from[at + c * p.w_group]) : 0.0f;
      }
    }
  }

  void compute() {
    int64_t rows = p_.batch * p_.out[0] * p_.out[1];
    int64_t work = p_.out[2] * p_.channels * p_.kernel[0] * p_.kernel[1] * p_.kernel[2];
    parallel(rows, SMALL / max(1, work) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        one_row({row / (p_.out[0] * p_.out[1]), {row / p_.out[1] % p_.out[0], row % p_.out[1], 0}});
      }
    });
  }

 private:
  // Pixels whose sums share each weight that is read.
  static constexpr int PIXELS = 8;

  void one_row(const Pixel& at) const {
    for (int64_t w = 0; w < p_.out[2]; w += PIXELS) {
      int64_t count = min(PIXELS, p_.out[2] - w), first = w * p_.stride[2] - p_.before[2];
      int64_t last = first + (count - 1) * p_.stride[2] + (p_.kernel[2] - 1) * p_.dilation[2];
      bool inside = count == PIXELS && first >= 0 && last < p_.in[2];
      for (int64_t c = 0; c < p_.channels; c += W) {
        inside && c + W <= p_.channels ? some_pixels<true>(at, w, PIXELS, c)
                                       : some_pixels<false>(at, w, count, c);
      }
    }
  }

  template <bool WHOLE>
  void some_pixels(const Pixel& at, int64_t w, int64_t count, int64_t c) const {
    int64_t left = p_.channels - c;
    auto get = [&](const T* p) INLINE_LAMBDA { return WHOLE || left >= W ? load(p) : load(p, left); };
    vf sums[PIXELS];
    vf bias = p_.bias ? get(static_cast<const T*>(p_.bias) + c) : vf{};
    for (vf& each : sums) {
      each = bias;
    }
    const float* weight = weights_ + c;
    for (int64_t kd = 0; kd < p_.kernel[0]; ++kd) {
      for (int64_t kh = 0; kh < p_.kernel[1]; ++kh) {
        const T* row = input_row(at, kd, kh);
        if (!row) {
          weight += p_.kernel[2] * row_;
          continue;
        }
        for (int64_t kw = 0; kw < p_.kernel[2]; ++kw, weight += row_) {
          int64_t x = w * p_.stride[2] - p_.before[2] + kw * p_.dilation[2];
          vf factor = load(weight);
#pragma GCC unroll 8
          for (int i = 0; i < PIXELS; ++i, x += p_.stride[2]) {
            if (WHOLE || (i < count && x >= 0 && x < p_.in[2])) {
              sums[i] += get(row + x * p_.channels + c) * factor;
            }
          }
        }
      }
    }
    T* out = static_cast<T*>(p_.result) + at.batch * p_.result_batch + at.at[0] * p_.result_step[0] +
             at.at[1] * p_.result_step[1] + w * p_.result_step[2] + c;
    for (int i = 0; i < count; ++i, out += p_.result_step[2]) {
      WHOLE || left >= W ? store(out, sums[i]) : store(out, sums[i], left);
    }
  }

  const T* input_row(const Pixel& at, int64_t kd, int64_t kh) const {
    int64_t d = at.at[0] * p_.stride[0] - p_.before[0] + kd * p_.dilation[0];
    int64_t h = at.at[1] * p_.stride[1] - p_.before[1] + kh * p_.dilation[1];
    if (d < -p_.cached || d >= p_.in[0] || h < 0 || h >= p_.in[1]) {
      return nullptr;
    }
    int64_t frame = d < 0 ? (at.batch + 1) * p_.cached + d : at.batch * p_.in[0] + d;
    return static_cast<const T*>(d < 0 ? p_.cache : p_.x) +
           (frame * p_.in[1] + h) * p_.in[2] * p_.channels;
  }

  const Convolution& p_;
  int64_t row_;
  const float* weights_;
};

// One tap on every pixel is a plain product.
bool is_product(const Convolution& p) {
  bool plain = !p.cached && !p.upsample && p.groups == 1;
  int64_t step = p.columns;
  for (int i = 2; i >= 0; --i) {
    plain = plain && p.kernel[i] == 1 && p.before[i] == 0 && p.in[i] == p.out[i] &&
            (p.stride[i] == 1 || p.out[i] == 1) && (p.result_step[i] == step || p.out[i] == 1);
    step *= p.out[i];
  }
  return plain && (p.result_batch == step || p.batch == 1);
}

void product(const Convolution& p) {
  int64_t start = 0;
  matmul({
      .type = p.type,
      .a = p.x,
      .b = p.weights,
      .bias = p.bias,
      .out = p.result,
      .m = p.batch * p.out[0] * p.out[1] * p.out[2],
      .n = p.columns,
      .k = p.channels,
      .a_row = p.channels,
      .a_k = 1,
      .b_k = p.w_channel,
      .b_column = p.w_column,
      .batch = 1,
      .a_starts = &start,
      .b_starts = &start,
  });
}

}  // namespace

void convolution(const Convolution& p) {
  if (p.batch * p.out[0] * p.out[1] * p.out[2] * p.columns == 0) {
    return;
  }
  if (is_product(p)) {
    return product(p);
  }
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    if (p.groups == p.channels && p.groups == p.columns && !p.upsample) {
      Depthwise<T>(p).compute();
      return;
    }
#if defined(__AVX512BF16__)
    if constexpr (is_bfloat<T>) {
      all_frames<T, Pairs>(p);
      return;
    }
#endif
    all_frames<T, Floats>(p);
  });
}

}  // namespace torchmlx::ISA
