// Convolutions, their weights' gradient, and norms of channels.
#include "check.h"
#include "conv_weights.h"
#include "layer_norm.h"

namespace {

// A convolution over three axes with a stride of 1 or 2, padding, perhaps groups and cached frames.
struct Numbers {
  int64_t batch, channels, columns, groups, cached, stride, dilation;
  int64_t in[3], kernel[3];
};

Convolution describe(const Numbers& n) {
  Convolution p{};
  p.batch = n.batch, p.cached = n.cached, p.channels = n.channels, p.columns = n.columns;
  p.groups = n.groups;
  int64_t w_step = n.channels / n.groups, step = n.columns;
  p.w_channel = 1;
  for (int i = 2; i >= 0; --i) {
    p.in[i] = n.in[i], p.kernel[i] = n.kernel[i], p.stride[i] = n.stride;
    p.dilation[i] = n.dilation;
    int64_t reach = n.dilation * (n.kernel[i] - 1);
    p.before[i] = i == 0 && n.cached ? n.cached : reach / 2;
    p.out[i] = (n.in[i] + 2 * (reach / 2) - reach - 1) / n.stride + 1;
    p.w_tap[i] = w_step, w_step *= n.kernel[i];
    p.result_step[i] = step, step *= p.out[i];
  }
  p.w_column = w_step, p.w_group = n.columns / n.groups * w_step, p.result_batch = step;
  return p;
}

// Where in x, or in the cache, an input lies; -1 for padding.
int64_t place(const Convolution& p, int64_t batch, const int64_t* at, bool* cached) {
  *cached = at[0] < 0;
  if (at[0] < -p.cached || at[0] >= p.in[0] || at[1] < 0 || at[1] >= p.in[1] || at[2] < 0 ||
      at[2] >= p.in[2]) {
    return -1;
  }
  int64_t frame = *cached ? (batch + 1) * p.cached + at[0] : batch * p.in[0] + at[0];
  return ((frame * p.in[1] + at[1]) * p.in[2] + at[2]) * p.channels;
}

// Calls f(result's place, column, weight's place, input's value) for each product.
template <class F>
void each_product(const Convolution& p, const Array& x, const Array& cache, const F& f) {
  int64_t pixels = p.out[0] * p.out[1] * p.out[2], taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
  int64_t channels = p.channels / p.groups, columns = p.columns / p.groups;
  for (int64_t i = 0; i < p.batch * pixels * taps; ++i) {
    int64_t tap = i % taps, pixel = i / taps, o = pixel % pixels;
    int64_t outs[3] = {o / (p.out[1] * p.out[2]), o / p.out[2] % p.out[1], o % p.out[2]};
    int64_t at_tap[3] = {tap / (p.kernel[1] * p.kernel[2]), tap / p.kernel[2] % p.kernel[1],
                         tap % p.kernel[2]};
    int64_t at[3];
    for (int d = 0; d < 3; ++d) {
      at[d] = outs[d] * p.stride[d] + at_tap[d] * p.dilation[d] - p.before[d];
    }
    bool cached;
    int64_t from = place(p, pixel / pixels, at, &cached);
    for (int64_t column = 0; from >= 0 && column < p.columns; ++column) {
      int64_t group = column / columns;
      for (int64_t c = 0; c < channels; ++c) {
        f(pixel * p.columns + column, column, (column * taps + tap) * channels + c,
          (cached ? cache : x).get(from + group * channels + c));
      }
    }
  }
}

void check_convolution(Type type, const Numbers& n) {
  Convolution p = describe(n);
  int64_t pixels = p.batch * p.out[0] * p.out[1] * p.out[2], frame = p.in[1] * p.in[2] * p.channels;
  int64_t weights = p.columns * p.w_column, k = p.w_column;
  Array x = Array::random(type, p.batch * p.in[0] * frame, 40);
  Array cache = Array::random(type, p.batch * p.cached * frame, 41);
  Array w = Array::random(type, weights, 42), bias = Array::random(type, p.columns, 43);
  Array out(type, pixels * p.columns), gradient = Array::random(type, pixels * p.columns, 44);
  Array w_gradient(type, weights);
  p.type = type, p.x = x.data(), p.cache = p.cached ? cache.data() : nullptr;
  p.weights = w.data(), p.bias = bias.data(), p.result = out.data();
  kernels::convolution(p);
  kernels::conv_weights({p, gradient.data(), w_gradient.data()});
  Doubles want(pixels * p.columns), w_want(weights);
  for (int64_t i = 0; i < pixels * p.columns; ++i) {
    want[i] = bias.get(i % p.columns);
  }
  each_product(p, x, cache, [&](int64_t result, int64_t, int64_t weight, double value) {
    want[result] += value * w.get(weight);
    w_want[weight] += value * gradient.get(result);
  });
  std::string numbers = std::to_string(p.channels) + " to " + std::to_string(p.columns);
  out.compare(want, units_of_sum(type, k), "convolution " + numbers);
  w_gradient.compare(w_want, units_of_sum(type, pixels), "conv_weights " + numbers);
}

// Rows of n, in which each of n / inner channels of a group has a weight.
void check_layer_norm(Type type, int64_t rows, int64_t n, int64_t inner, int64_t groups) {
  int64_t channels = n / inner;
  Array x = Array::random(type, rows * n, 45), out(type, rows * n);
  Array weight = Array::random(Type::f32, channels * groups, 46);
  Array bias = Array::random(Type::f32, channels * groups, 47);
  kernels::layer_norm({type, Type::f32, x.data(), weight.data(), bias.data(), out.data(), rows, n,
                       inner, groups, 1e-5f});
  Doubles want(rows * n);
  for (int64_t r = 0; r < rows; ++r) {
    double mean = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      mean += x.get(r * n + i) / static_cast<double>(n);
    }
    for (int64_t i = 0; i < n; ++i) {
      squares += (x.get(r * n + i) - mean) * (x.get(r * n + i) - mean);
    }
    double factor = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
    for (int64_t i = 0; i < n; ++i) {
      int64_t channel = r % groups * channels + i / inner;
      want[r * n + i] = (x.get(r * n + i) - mean) * factor * weight.get(channel) + bias.get(channel);
    }
  }
  out.compare(want, 8.0, "layer_norm " + std::to_string(n));
}

}  // namespace

void check_images() {
  for (Type type : TYPES) {
    check_convolution(type, {1, 3, 5, 1, 0, 1, 1, {3, 5, 6}, {2, 3, 3}});
    check_convolution(type, {2, 8, 20, 1, 2, 1, 1, {2, 5, 4}, {3, 3, 3}});
    check_convolution(type, {1, 6, 9, 3, 0, 2, 1, {1, 8, 9}, {1, 3, 3}});
    check_convolution(type, {1, 5, 5, 5, 0, 1, 2, {1, 7, 9}, {1, 3, 3}});
    check_convolution(type, {1, 40, 35, 1, 0, 1, 1, {1, 5, 5}, {1, 3, 3}});
    check_convolution(type, {1, 4, 5, 1, 0, 1, 1, {2, 0, 3}, {1, 1, 1}});
    check_layer_norm(type, 5, 37, 1, 1);
    check_layer_norm(type, 1, 64, 1, 1);
    check_layer_norm(type, 6, 33, 11, 3);
    check_layer_norm(type, 1, 40000, 1, 1);
  }
}
