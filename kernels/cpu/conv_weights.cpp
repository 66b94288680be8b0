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

// Words of a strip: what is written beyond its last pixel must not reach the next strip.
constexpr int64_t STRIP = (STEPS + 1) * COLUMNS;

// Rows of the result that share a packed block of the image.
constexpr int64_t MOST_ROWS = 16 * ROWS;

// Groups, `narrow` of them taken together: what rows of one make of channels of another is dropped.
// The rows of the product are the convolution's columns. Its columns are strips of pieces: channels
// of a tap, or of several.
template <class T>
class Groups {
 public:
  // `p` has the wide groups, each of `narrow` that count.
  Groups(const Convolution& p, const ConvWeights& whole, int64_t group, int64_t narrow)
      : p_(p), image_(p, group, 0, p.kernel[0], COLUMNS, 1), rows_(p.columns / p.groups),
        pixels_(p.batch * p.out[0] * p.out[1] * p.out[2]), columns_(rows_ / narrow),
        channels_(p.channels / p.groups / narrow),
        gradient_(static_cast<const T*>(whole.gradient) + group * rows_),
        result_(static_cast<T*>(whole.result) + group * p.w_group) {
    int64_t taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
    int64_t longest = divide_up(taps * channels_ * narrow, max(1, image_.pieces()));
    in_strip_ = max(1, COLUMNS / max(1, longest));
  }

  void compute() {
    int64_t all = divide_up(image_.pieces(), in_strip_), wanted = 4 * threads();
    int64_t strips = max(1, min(MOST_STRIPS, all / wanted)), tasks = divide_up(all, strips);
    int64_t parts = max(divide_up(rows_, MOST_ROWS), min(wanted / max(1, tasks), rows_ / ROWS));
    parts = max(1, parts);
    parallel(tasks * parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        int64_t strip = task / parts * strips, part = task % parts;
        run(strip, min(strips, all - strip), rows_ * part / parts, rows_ * (part + 1) / parts);
      }
    });
  }

 private:
  // The pieces of a task; `step` is where their first values go.
  struct Strips {
    Piece pieces[MOST_STRIPS * COLUMNS];
    int count = 0;
  };

  Strips take(int64_t first, int64_t count) const {
    Strips result;
    int64_t end = min(image_.pieces(), (first + count) * in_strip_), column = 0;
    for (int64_t i = first * in_strip_; i < end; ++i) {
      Piece piece = image_.piece(i);
      column = i % in_strip_ ? column : 0;
      piece.step = (i / in_strip_ - first) * STRIP + column;
      column += piece.values;
      result.pieces[result.count++] = piece;
    }
    return result;
  }

  void run(int64_t first, int64_t count, int64_t row, int64_t end) const {
    const Strips strips = take(first, count);
    int64_t width = count * COLUMNS, bands = divide_up(end - row, ROWS);
    auto* left = static_cast<uint32_t*>(scratch(A, 4 * STEPS * ROWS));
    auto* right = static_cast<uint32_t*>(scratch(B, 4 * count * STRIP));
    auto* sums = static_cast<float*>(scratch(SUMS, 4 * (end - row) * width));
    int64_t pixel = 0;
    do {
      int64_t steps = min(STEPS, pixels_ - pixel);
      pack_image(right, pixel, steps, strips);
      for (int64_t band = 0; band < bands; ++band) {
        int64_t top = (end - row) * band / bands, height = (end - row) * (band + 1) / bands - top;
        pack<Floats>(left, static_cast<int>(height), height,
                     gradient_ + pixel * p_.columns + row + top, 1, p_.columns, steps);
        Tile multiply = tile_of<Floats>(height);
        for (int64_t i = 0; i < count; ++i) {
          multiply(steps, left, right + i * STRIP, sums + top * width + i * COLUMNS, width,
                   pixel > 0);
        }
      }
      pixel += STEPS;
    } while (pixel < pixels_);
    finish(sums, width, strips, row, end);
  }

  // Whole vectors are written: what is too much is overwritten next, or belongs to no piece.
  void pack_image(uint32_t* to, int64_t first, int64_t steps, const Strips& strips) const {
    if (steps == 0) {
      return;  // no pixels, of which the first has no place
    }
    Pixel pixel = image_.pixel(first);
    for (int64_t step = 0; step < steps; ++step, pixel.next(p_.out), to += COLUMNS) {
      image_.meet_all(pixel, strips.pieces, strips.count, [&](int i, const T* from) INLINE_LAMBDA {
        auto* strip = reinterpret_cast<float*>(to + strips.pieces[i].step);
        int64_t left = strips.pieces[i].values;
        for (; left > 0; left -= W, strip += W, from += from ? W : 0) {
          store(strip, !from ? vf{} : left >= W ? load(from) : load(from, left));
        }
      });
    }
  }

  void finish(const float* sums, int64_t width, const Strips& strips, int64_t row,
              int64_t end) const {
    for (; row < end; ++row, sums += width) {
      int64_t first = row / columns_ * channels_;
      for (int i = 0; i < strips.count; ++i) {
        Piece piece = strips.pieces[i];
        int64_t at = piece.step / STRIP * COLUMNS + piece.step % STRIP;
        if (channels_ < p_.channels / p_.groups) {
          int64_t skipped = max(0, first - piece.value);
          piece.values = min(piece.value + piece.values, first + channels_) - piece.value - skipped;
          piece.value += skipped - first;
          at += skipped;
        }
        T* to = result_ + row * p_.w_column + image_.weights(piece);
        for (int64_t c = 0; c < piece.values; c += W) {
          int64_t left = piece.values - c;
          left >= W ? store(to + c, load(sums + at + c))
                    : store(to + c, load(sums + at + c, left), left);
        }
      }
    }
  }

  const Convolution& p_;
  Image<T> image_;
  int64_t rows_, pixels_;
  int64_t columns_, channels_;  // of a narrow group
  int64_t in_strip_;
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
  if (p.of.columns == 0) {
    return;
  }
  with_type(p.of.type, [&](auto zero) {
    using T = decltype(zero);
    if (p.of.groups == p.of.channels && p.of.groups == p.of.columns && !p.of.upsample) {
      Depthwise<T>(p).compute();
      return;
    }
    int64_t narrow = groups_together(p.of);
    Convolution wide = p.of;
    wide.groups /= narrow;
    wide.w_group *= narrow;
    for (int64_t group = 0; group < wide.groups; ++group) {
      Groups<T>(wide, p, group, narrow).compute();
    }
  });
}

}  // namespace torchmlx::ISA
