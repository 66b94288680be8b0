// What the taps of a convolution meet: where it lies in memory, and what of it is padding.
#pragma once

#include "convolution.h"
#include "tile.h"

namespace torchmlx::ISA {

// Channels below which the taps of a row are taken together, where they lie together: a vector each
// would be mostly empty. Such a piece has at most EDGE values.
constexpr int64_t FEW_CHANNELS = 2 * W, EDGE = 256;

// The most groups that fill a tile's columns and divide them all.
INLINE int64_t groups_together(const Convolution& p) {
  int64_t together = max(1, min(p.groups, COLUMNS * p.groups / p.columns));
  while (p.groups % together) {
    --together;
  }
  return together;
}

// Values that lie together: channels of one tap, or of the taps of a row.
struct Piece {
  int64_t tap[3];
  int64_t value, values;
  int64_t offset;    // from what a pixel's first tap meets, in elements
  int64_t step = 0;  // where its words go, for the caller to fill in
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

// A group's channels, as the taps from first_tap to last_tap along the first axis meet them.
template <class T>
class Image {
 public:
  Image(const Convolution& p, int64_t group, int64_t first_tap, int64_t last_tap, int64_t most,
        int64_t unit)
      : p_(p), channels_(p.channels / p.groups), group_(group), first_tap_(first_tap),
        last_tap_(last_tap), unit_(unit) {
    together_ = channels_ < FEW_CHANNELS && p.groups == 1 && p.dilation[2] == 1 && !p.upsample &&
                (p.kernel[2] == 1 || p.w_tap[2] == channels_ * p.w_channel);
    run_ = together_ ? p.kernel[2] * channels_ : channels_;
    row_taps_ = together_ ? 1 : p.kernel[2];
    parts_ = max(1, divide_up(run_, together_ ? min(most, EDGE) : most));
    pieces_ = run_ ? (last_tap - first_tap) * p.kernel[1] * row_taps_ * parts_ : 0;
  }

  // The pieces have at most `most` values, all but the last of a run a multiple of `unit`.
  int64_t pieces() const { return pieces_; }

  // Values of all pieces.
  int64_t values() const { return pieces_ / parts_ * run_; }

  // Where a piece's weights are, from the group's first.
  int64_t weights(const Piece& piece) const {
    int64_t at = piece.value * p_.w_channel;
    for (int i = 0; i < 3; ++i) {
      at += piece.tap[i] * p_.w_tap[i];
    }
    return at;
  }

  Piece piece(int64_t index) const {
    int64_t part = index % parts_, tap = index / parts_, units = divide_up(run_, unit_);
    int64_t value = units * part / parts_ * unit_;
    int64_t end = min(run_, units * (part + 1) / parts_ * unit_);
    int64_t d = first_tap_ + tap / (p_.kernel[1] * row_taps_);
    int64_t h = tap / row_taps_ % p_.kernel[1], w = tap % row_taps_;
    return {{d, h, w}, value, end - value,
            offset(d * p_.dilation[0], h * p_.dilation[1], w * p_.dilation[2]) + value};
  }

  Pixel pixel(int64_t index) const {
    const int64_t* n = p_.out;
    return {index / (n[0] * n[1] * n[2]),
            {index / (n[1] * n[2]) % n[0], index / n[2] % n[1], index % n[2]}};
  }

  // Calls f(i, values) for each piece with what it meets at a pixel; values are null where that is
  // padding.
  template <class F>
  void meet_all(const Pixel& pixel, const Piece* pieces, int count, const F& f) const;

 private:
  int64_t offset(int64_t d, int64_t h, int64_t w) const {
    return ((d * p_.in[1] + h) * p_.in[2] + w) * p_.channels;
  }

  // Frames of the cache are inside.
  bool is_inside(const int64_t* at) const {
    int64_t first[3] = {first_tap_, 0, 0}, least[3] = {-p_.cached, 0, 0};
    int64_t last[3] = {last_tap_ - 1, p_.kernel[1] - 1, p_.kernel[2] - 1};
    bool inside = !p_.upsample;
    for (int i = 0; i < 3; ++i) {
      inside = inside && at[i] + first[i] * p_.dilation[i] >= least[i] &&
               at[i] + last[i] * p_.dilation[i] < p_.in[i];
    }
    return inside;
  }

  // A group's first value in a frame of x or of the cache.
  const T* start(const void* array, int64_t frame) const {
    return static_cast<const T*>(array) + offset(frame, 0, 0) + group_ * channels_;
  }

  const T* meet(int64_t batch, const int64_t* origin, const Piece& piece, T* edge) const;
  const T* meet_row(const T* row, int64_t begin, int64_t values, T* edge) const;

  const Convolution& p_;
  int64_t channels_, group_, first_tap_, last_tap_, unit_;
  bool together_;
  int64_t run_, row_taps_;  // values that lie together; such runs in a row of taps
  int64_t parts_, pieces_;  // of a run, and in all
};

template <class T>
template <class F>
void Image<T>::meet_all(const Pixel& pixel, const Piece* pieces, int count, const F& f) const {
  int64_t at[3];
  for (int i = 0; i < 3; ++i) {
    at[i] = pixel.at[i] * p_.stride[i] - p_.before[i];
  }
  if (is_inside(at)) {
    int64_t first = offset(at[0], at[1], at[2]);
    const T* x = start(p_.x, pixel.batch * p_.in[0]);
    const T* cache = p_.cached ? start(p_.cache, (pixel.batch + 1) * p_.cached) : x;
    for (int i = 0; i < count; ++i) {
      bool before = at[0] + pieces[i].tap[0] * p_.dilation[0] < 0;
      f(i, (before ? cache : x) + (first + pieces[i].offset));
    }
    return;
  }
  T edge[EDGE];
  for (int i = 0; i < count; ++i) {
    f(i, meet(pixel.batch, at, pieces[i], edge));
  }
}

template <class T>
const T* Image<T>::meet(int64_t batch, const int64_t* origin, const Piece& piece, T* edge) const {
  int64_t at[3];
  for (int i = 0; i < 3; ++i) {
    at[i] = origin[i] + piece.tap[i] * p_.dilation[i];
  }
  if (at[0] < -p_.cached || at[0] >= p_.in[0] || at[1] < 0) {
    return nullptr;
  }
  at[1] >>= p_.upsample;
  if (at[1] >= p_.in[1]) {
    return nullptr;
  }
  bool before = at[0] < 0;
  int64_t frame = before ? (batch + 1) * p_.cached + at[0] : batch * p_.in[0] + at[0];
  const T* row = static_cast<const T*>(before ? p_.cache : p_.x) + offset(frame, at[1], 0);
  if (together_) {
    return meet_row(row, at[2] * channels_ + piece.value, piece.values, edge);
  }
  if (at[2] < 0 || (at[2] >>= p_.upsample) >= p_.in[2]) {
    return nullptr;
  }
  return row + at[2] * p_.channels + group_ * channels_ + piece.value;
}

// Values `begin` and on of a row; outside of it are zeros.
template <class T>
const T* Image<T>::meet_row(const T* row, int64_t begin, int64_t values, T* edge) const {
  int64_t end = begin + values, first = max(begin, 0), last = min(end, p_.in[2] * channels_);
  if (first >= last) {
    return nullptr;
  }
  if (begin == first && end == last) {
    return row + begin;
  }
  memset(edge, 0, values * sizeof(T));
  memcpy(edge + (first - begin), row + first, (last - first) * sizeof(T));
  return edge;
}

}  // namespace torchmlx::ISA
