// The gradient of a convolution's weights: the gradient of its result, transposed, times the image,
// which is read as it is needed.
#include "conv_weights.h"

#include "image.h"
#include "tile.h"

namespace torchmlx::ISA {
namespace {

// Pixels in a block: a strip of the gradient stays in the first-level cache, what MOST_STRIPS strips
// of the image meet in the second (512 KiB).
constexpr int64_t STEPS = 512;
constexpr int MOST_STRIPS = 8;

// Rows of the result that share a packed block of the image.
constexpr int64_t MOST_ROWS = 16 * ROWS;

// A group. The rows of the product are the convolution's columns, its columns are pieces: a tap's
// channels, COLUMNS at most.
template <class T>
class Group {
 public:
  Group(const ConvWeights& p, int64_t group)
      : p_(p.of), image_(p.of, group, 0, p.of.kernel[0], COLUMNS, 1), rows_(p_.columns / p_.groups),
        pixels_(p_.batch * p_.out[0] * p_.out[1] * p_.out[2]),
        gradient_(static_cast<const T*>(p.gradient) + group * rows_),
        result_(static_cast<T*>(p.result) + group * p_.w_group) {}

  void compute() {
    int64_t pieces = image_.pieces(), wanted = 4 * threads();
    int64_t strips = max(1, min(MOST_STRIPS, pieces / wanted));
    int64_t tasks = divide_up(pieces, strips);
    int64_t parts = max(divide_up(rows_, MOST_ROWS), min(wanted / max(1, tasks), rows_ / ROWS));
    parts = max(1, parts);
    parallel(tasks * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        int64_t piece = task / parts * strips, part = task % parts;
        run(piece, min(strips, pieces - piece), rows_ * part / parts, rows_ * (part + 1) / parts);
      }
    });
  }

 private:
  void run(int64_t first, int64_t count, int64_t row, int64_t end) const {
    Piece pieces[MOST_STRIPS];
    for (int64_t i = 0; i < count; ++i) {
      pieces[i] = image_.piece(first + i);
      pieces[i].step = i * STEPS * COLUMNS;
    }
    int64_t width = count * COLUMNS, strips = divide_up(end - row, ROWS);
    auto* left = static_cast<uint32_t*>(scratch(A, 4 * STEPS * ROWS));
    auto* right = static_cast<uint32_t*>(scratch(B, 4 * STEPS * width));
    auto* sums = static_cast<float*>(scratch(SUMS, 4 * (end - row) * width));
    int64_t pixel = 0;
    do {
      int64_t steps = min(STEPS, pixels_ - pixel);
      pack_image(right, pixel, steps, pieces, static_cast<int>(count));
      for (int64_t strip = 0; strip < strips; ++strip) {
        int64_t top = (end - row) * strip / strips;
        int64_t height = (end - row) * (strip + 1) / strips - top;
        pack<Floats>(left, static_cast<int>(height), height,
                     gradient_ + pixel * p_.columns + row + top, 1, p_.columns, steps);
        Tile multiply = tile_of<Floats>(height);
        for (int64_t i = 0; i < count; ++i) {
          multiply(steps, left, right + pieces[i].step, sums + top * width + i * COLUMNS, width,
                   pixel > 0);
        }
      }
      pixel += STEPS;
    } while (pixel < pixels_);
    finish(sums, width, pieces, static_cast<int>(count), row, end);
  }

  void pack_image(uint32_t* to, int64_t first, int64_t steps, const Piece* pieces,
                  int count) const {
    Pixel pixel = image_.pixel(first);
    for (int64_t step = 0; step < steps; ++step, pixel.next(p_.out), to += COLUMNS) {
      image_.meet_all(pixel, pieces, count, [&](int i, const T* values) INLINE_LAMBDA {
        float* strip = reinterpret_cast<float*>(to + pieces[i].step);
        for (int64_t c = 0; c < COLUMNS; c += W) {
          int64_t left = pieces[i].values - c;
          store(strip + c, !values || left <= 0 ? vf{}
                           : left >= W          ? load(values + c)
                                                : load(values + c, left));
        }
      });
    }
  }

  void finish(const float* sums, int64_t width, const Piece* pieces, int count, int64_t row,
              int64_t end) const {
    for (; row < end; ++row, sums += width) {
      for (int i = 0; i < count; ++i) {
        T* to = result_ + row * p_.w_column + image_.weights(pieces[i]);
        for (int64_t c = 0; c < pieces[i].values; c += W) {
          int64_t left = pieces[i].values - c;
          vf value = load(sums + i * COLUMNS + c);
          left >= W ? store(to + c, value) : store(to + c, value, left);
        }
      }
    }
  }

  const Convolution& p_;
  Image<T> image_;
  int64_t rows_, pixels_;
  const T* gradient_;
  T* result_;
};

// Every channel by itself: a vector of channels and a row of taps at a time.
template <class T>
class Depthwise {
 public:
  explicit Depthwise(const ConvWeights& p)
      : p_(p.of), gradient_(static_cast<const T*>(p.gradient)),
        result_(static_cast<T*>(p.result)) {}

  void compute() {
    int64_t rows = p_.kernel[0] * p_.kernel[1];
    parallel(divide_up(p_.channels, W) * rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t w = 0; w < p_.kernel[2]; ++w) {
          tap(i / rows * W, i % rows / p_.kernel[1], i % p_.kernel[1], w);
        }
      }
    });
  }

 private:
  void tap(int64_t channel, int64_t kd, int64_t kh, int64_t kw) const {
    int64_t start = kw * p_.dilation[2] - p_.before[2], left = min(W, p_.channels - channel);
    int64_t first = start < 0 ? divide_up(-start, p_.stride[2]) : 0;
    int64_t last = p_.in[2] > start ? min(p_.out[2], divide_up(p_.in[2] - start, p_.stride[2])) : 0;
    vf sums[4] = {};
    auto get = [&](const T* p) INLINE_LAMBDA { return left == W ? load(p) : load(p, left); };
    for (int64_t row = 0; row < p_.batch * p_.out[0] * p_.out[1]; ++row) {
      int64_t batch = row / (p_.out[0] * p_.out[1]);
      int64_t d = row / p_.out[1] % p_.out[0] * p_.stride[0] - p_.before[0] + kd * p_.dilation[0];
      int64_t h = row % p_.out[1] * p_.stride[1] - p_.before[1] + kh * p_.dilation[1];
      if (d < -p_.cached || d >= p_.in[0] || h < 0 || h >= p_.in[1]) {
        continue;
      }
      int64_t frame = d < 0 ? (batch + 1) * p_.cached + d : batch * p_.in[0] + d;
      const T* x = static_cast<const T*>(d < 0 ? p_.cache : p_.x) + channel +
                   ((frame * p_.in[1] + h) * p_.in[2] + start) * p_.channels;
      const T* g = gradient_ + row * p_.out[2] * p_.columns + channel;
      for (int64_t w = first; w < last; ++w) {
        sums[w % 4] += get(g + w * p_.columns) * get(x + w * p_.stride[2] * p_.channels);
      }
    }
    vf total = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    T* to = result_ + kd * p_.w_tap[0] + kh * p_.w_tap[1] + kw * p_.w_tap[2];
    for (int64_t c = 0; c < left; ++c) {
      store(to + (channel + c) * p_.w_group, splat(total[c]), 1);
    }
  }

  const Convolution& p_;
  const T* gradient_;
  T* result_;
};

}  // namespace

void conv_weights(const ConvWeights& p) {
  with_type(p.of.type, [&](auto zero) {
    using T = decltype(zero);
    if (p.of.groups == p.of.channels && p.of.groups == p.of.columns && !p.of.upsample) {
      Depthwise<T>(p).compute();
      return;
    }
    for (int64_t group = 0; group < p.of.groups; ++group) {
      Group<T>(p, group).compute();
    }
  });
}

}  // namespace torchmlx::ISA
