// Convolution over frames, rows and columns, channels last: a matrix product whose left side, a row
// for each pixel of the result, is read from the image as it is needed.
#include "convolution.h"

#include "image.h"
#include "matmul.h"
#include "tile.h"

namespace torchmlx::ISA {
namespace {

// Steps of k in a block: a strip of pixels stays in the first-level cache (14 x 512 words are
// 28 KiB), the weights of BLOCK_COLUMNS columns in the second (512 KiB).
constexpr int64_t STEPS = 512;
constexpr int64_t BLOCK_COLUMNS = 256;

// Pixels of a task: packed weights serve all of them, their sums wait in memory between blocks.
constexpr int64_t MOST_PIXELS = 1024;

// This thread's memory for weights that are not used as they are: tiles use the first three.
constexpr int WEIGHTS = 3;

// Multiply-adds below which threads cost more than they bring.
constexpr int64_t SMALL = 1 << 16;

// Words from a pixel of a strip to the next: a vector more than a block has, so that they do not
// fall into the same sets of the cache.
constexpr int PITCH = STEPS + W;

// Consecutive frames of the result that meet the same taps along the first axis, and a group.
template <class T, class Words>
class Frames {
  static constexpr int ROWS = Words::ROWS, COLUMNS = Words::COLUMNS;

 public:
  Frames(const Convolution& p, int64_t first, int64_t count, int64_t first_tap, int64_t last_tap,
         int64_t group)
      : p_(p), image_(p, group, first_tap, last_tap, STEPS * Words::VALUES, Words::VALUES),
        first_pixel_(first * p.out[1] * p.out[2]), pixels_(count * p.out[1] * p.out[2]),
        columns_(p.columns / p.groups), group_(group) {}

  void compute() {
    choose_tasks();
    int64_t tasks = pixel_tasks_ * column_tasks_;
    bool small = pixels_ * columns_ * image_.values() < SMALL;
    parallel(tasks, small ? tasks : 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        run(task / column_tasks_, task % column_tasks_);
      }
    });
  }

 private:
  // Pieces whose steps of k follow one another; zeros follow up to `steps`, whole tiles.
  struct Block {
    Piece pieces[STEPS];
    int count = 0;
    int64_t filled = 0, steps = 0;
  };

  // Large tasks, unless that leaves a thread without work.
  void choose_tasks() {
    constexpr int64_t MOST_COLUMNS = BLOCK_COLUMNS / COLUMNS * COLUMNS, LEAST_PIXELS = 16 * ROWS;
    int64_t wanted = 4 * threads(), strips = divide_up(columns_, COLUMNS);
    block_columns_ = divide_up(strips, divide_up(columns_, MOST_COLUMNS)) * COLUMNS;
    column_tasks_ = divide_up(columns_, block_columns_);
    int64_t pixels = divide_up(pixels_ * column_tasks_, wanted);
    pixels = max(LEAST_PIXELS, min(MOST_PIXELS, pixels));
    pixel_tasks_ = divide_up(pixels_, pixels);
    while (pixel_tasks_ * column_tasks_ < wanted && block_columns_ > COLUMNS) {
      block_columns_ = divide_up(block_columns_ / COLUMNS, 2) * COLUMNS;
      column_tasks_ = divide_up(columns_, block_columns_);
    }
  }

  void run(int64_t pixel_task, int64_t column_task) {
    int64_t begin = pixels_ * pixel_task / pixel_tasks_;
    int64_t end = pixels_ * (pixel_task + 1) / pixel_tasks_, strips = divide_up(end - begin, ROWS);
    int64_t column = column_task * block_columns_;
    int64_t columns = min(block_columns_, columns_ - column);
    int64_t row = divide_up(columns, COLUMNS) * COLUMNS;
    auto* weights = static_cast<uint32_t*>(scratch(B, 4 * STEPS * row));
    auto* image = static_cast<uint32_t*>(scratch(A, 4 * PITCH * ROWS));
    auto* sums = static_cast<float*>(scratch(SUMS, 4 * row * (end - begin)));
    int64_t done = 0;
    do {
      bool resume = done > 0;
      Block block;
      done = fill(block, done);
      pack_weights(weights, block, column, columns);
      for (int64_t strip = 0; strip < strips; ++strip) {
        int64_t first = begin + (end - begin) * strip / strips;
        int64_t rows = begin + (end - begin) * (strip + 1) / strips - first;
        float* here = sums + (first - begin) * row;
        Pixel pixel = image_.pixel(first_pixel_ + first);
        pack_image(image, rows, pixel, block);
        multiply_strips<Words, PITCH>(rows, block.steps, image, weights, row / COLUMNS, here, row,
                                      resume);
        if (done == image_.pieces()) {
          finish(pixel, rows, column, columns, here, row);
        }
      }
    } while (done < image_.pieces());
  }

  // As many pieces from `next` on as fit; returns where the following block begins.
  int64_t fill(Block& block, int64_t next) const {
    for (; next < image_.pieces(); ++next) {
      Piece piece = image_.piece(next);
      int64_t steps = divide_up(piece.values, Words::VALUES);
      if (block.filled + steps > STEPS) {
        break;
      }
      piece.step = block.filled;
      block.filled += steps;
      block.pieces[block.count++] = piece;
    }
    block.steps = divide_up(block.filled, Words::UNIT) * Words::UNIT;
    return next;
  }

  void pack_weights(uint32_t* to, const Block& block, int64_t column, int64_t columns) const {
    const T* from = static_cast<const T*>(p_.weights) + group_ * p_.w_group + column * p_.w_column;
    for (int64_t c = 0; c < columns; c += COLUMNS) {
      for (int i = 0; i < block.count; ++i) {
        const Piece& piece = block.pieces[i];
        pack<Words>(to + c * block.steps + piece.step * COLUMNS, COLUMNS, min(COLUMNS, columns - c),
                    from + c * p_.w_column + image_.weights(piece), p_.w_column, p_.w_channel,
                    piece.values);
      }
      end_strip<Words>(to + c * block.steps, block.filled * Words::VALUES, block.steps);
    }
  }

  void pack_image(uint32_t* to, int64_t rows, Pixel pixel, const Block& block) const {
    for (int64_t r = 0; r < rows; ++r, pixel.next(p_.out), to += PITCH) {
      image_.meet_all(pixel, block.pieces, block.count, [&](int i, const T* values) INLINE_LAMBDA {
        copy(to + block.pieces[i].step, values, block.pieces[i].values);
      });
      for (int64_t i = block.filled; i < block.steps; ++i) {
        to[i] = 0;
      }
    }
  }

  // Words of k values, or zeros. Whole vectors are written: what is too much is overwritten next, or
  // lies between two pixels.
  static void copy(uint32_t* to, const T* from, int64_t k) {
    constexpr int64_t STEP = W * Words::VALUES;
    int64_t value = 0;
    for (; value + STEP <= k; value += STEP, to += W) {
      write(to, from ? load_words<Words>(from + value, STEP) : vf{});
    }
    if (value < k) {
      write(to, from ? load_words<Words>(from + value, k - value) : vf{});
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
  Image<T> image_;
  int64_t first_pixel_, pixels_, columns_, group_;
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
    auto* weights = static_cast<float*>(scratch(WEIGHTS, 4 * taps * row_));
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

// Groups too narrow for a tile, some of them taken together: their weights with zeros between them.
template <class T>
Convolution merge(const Convolution& p, int64_t together) {
  int64_t taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
  int64_t narrow = p.channels / p.groups, wide = narrow * together;
  auto* weights = static_cast<T*>(scratch(WEIGHTS, p.columns * taps * wide * sizeof(T)));
  memset(weights, 0, p.columns * taps * wide * sizeof(T));
  Convolution merged = p;
  merged.weights = weights;
  merged.groups = p.groups / together;
  merged.w_channel = 1;
  merged.w_column = taps * wide;
  merged.w_group = p.columns / merged.groups * merged.w_column;
  for (int64_t i = 2, step = wide; i >= 0; step *= p.kernel[i--]) {
    merged.w_tap[i] = step;
  }
  int64_t columns = p.columns / p.groups;
  for (int64_t column = 0; column < p.columns; ++column) {
    int64_t group = column / columns;
    auto* from = static_cast<const T*>(p.weights) + group * p.w_group + column % columns * p.w_column;
    T* to = weights + column * merged.w_column + group % together * narrow;
    for (int64_t tap = 0; tap < taps; ++tap, to += wide) {
      int64_t at = tap / (p.kernel[1] * p.kernel[2]) * p.w_tap[0] +
                   tap / p.kernel[2] % p.kernel[1] * p.w_tap[1] + tap % p.kernel[2] * p.w_tap[2];
      for (int64_t c = 0; c < narrow; ++c) {
        to[c] = from[at + c * p.w_channel];
      }
    }
  }
  return merged;
}

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
    int64_t together = groups_together(p);
    const Convolution& dense = together > 1 ? merge<T>(p, together) : p;
    with_words<T>([&](auto words) { all_frames<T, decltype(words)>(dense); });
  });
}

}  // namespace torchmlx::ISA
