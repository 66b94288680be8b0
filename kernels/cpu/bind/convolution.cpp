// Convolution, its transpose and its weights' gradient over one to three axes, channels last.
#include "conv_weights.h"

#include <nanobind/stl/pair.h>

#include <array>
#include <numeric>

#include "bind/node.h"

namespace torchmlx {
namespace {

using Three = std::array<int64_t, 3>;
using Padding = std::vector<std::pair<int, int>>;

// Numbers for three axes; for those that the arrays lack, which come first, it is `missing`.
template <class Values>
Three three(const Values& values, int64_t missing) {
  Three result{missing, missing, missing};
  std::copy(values.begin(), values.end(), result.end() - values.size());
  return result;
}

// The axes between the first and the last.
Three lengths(const mx::Shape& shape) {
  return three(std::vector<int64_t>(shape.begin() + 1, shape.end() - 1), 1);
}

// What the arrays do not tell. `before` is what the first result sees in front of x or, of a
// transpose, how many results in front are left out.
struct Settings {
  bool transposed, bias, cache, upsample;
  int groups;
  Three stride, dilation, before;
  mx::Shape shape;
  bool operator==(const Settings&) const = default;
};

// The problem, but for pointers and the weights' strides; x, w, result: shapes.
Convolution describe(const Settings& s, const mx::Shape& x, const mx::Shape& w,
                     const mx::Shape& result, int64_t cached) {
  Convolution p{};
  p.batch = x.front();
  p.channels = x.back();
  p.columns = result.back();
  p.groups = s.groups;
  p.cached = cached;
  p.upsample = s.upsample;
  Three in = lengths(x), kernel = lengths(w), out = lengths(result);
  int64_t step = p.columns;
  for (int i = 2; i >= 0; --i) {
    p.in[i] = in[i];
    p.kernel[i] = kernel[i];
    p.out[i] = out[i];
    p.stride[i] = s.stride[i];
    p.dilation[i] = s.dilation[i];
    p.before[i] = s.before[i];
    p.result_step[i] = step;
    step *= out[i];
  }
  p.result_batch = step;
  return p;
}

// Along one axis of a transpose every stride-th result, from `first` on, as a convolution. Its index
// q stands for i = first + q * stride, and x[o] meets tap t there if o * stride + t * dilation = i +
// before: some of the taps, in the opposite order.
void every(Convolution& p, int axis, int64_t first, size_t item) {
  int64_t stride = p.stride[axis], dilation = p.dilation[axis];
  int64_t common = std::gcd(stride, dilation), tap_step = stride / common;
  int64_t tap = 0, reach = first + p.before[axis];
  while (tap < tap_step && (tap * dilation - reach) % stride) {
    ++tap;
  }
  bool none = tap == tap_step || tap >= p.kernel[axis];
  int64_t taps = none ? 0 : (p.kernel[axis] - 1 - tap) / tap_step + 1, last = taps - 1;
  p.weights = static_cast<const char*>(p.weights) +
              (none ? 0 : (tap + last * tap_step) * p.w_tap[axis] * static_cast<int64_t>(item));
  p.w_tap[axis] *= -tap_step;
  p.kernel[axis] = taps;
  p.dilation[axis] = dilation / common;
  p.before[axis] = none ? 0 : last * p.dilation[axis] - (reach - tap * dilation) / stride;
  p.stride[axis] = 1;
  p.result = static_cast<char*>(p.result) + first * p.result_step[axis] * item;
  p.out[axis] = (p.out[axis] - first + stride - 1) / stride;
  p.result_step[axis] *= stride;
}

// The convolutions that together are the transpose p.
std::vector<Convolution> phases(const Convolution& p, size_t item) {
  std::vector<Convolution> done{p};
  for (int axis = 0; axis < 3; ++axis) {
    std::vector<Convolution> finer;
    for (const Convolution& each : done) {
      for (int64_t first = 0; first < std::min(p.stride[axis], p.out[axis]); ++first) {
        every(finer.emplace_back(each), axis, first, item);
      }
    }
    done = std::move(finer);
  }
  return done;
}

// Inputs x and weights, then a bias and cached frames as far as there are any.
class Node : public Native {
 public:
  explicit Node(Settings settings) : settings_(std::move(settings)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const mx::array x = contiguous(inputs[0]);
    // A side of a product must be contiguous, or it is packed slowly.
    bool good = inputs[1].strides(-1) == 1 || inputs[1].strides(0) == 1;
    const mx::array w = good ? inputs[1] : contiguous(inputs[1]);
    const mx::array last = contiguous(inputs.back());
    allocate(outputs[0]);
    Convolution p = describe(settings_, x.shape(), w.shape(), settings_.shape,
                             settings_.cache ? last.shape(1) : 0);
    p.type = *type_of(x);
    p.x = x.data<void>();
    p.cache = settings_.cache ? last.data<void>() : nullptr;
    p.weights = w.data<void>();
    p.bias = settings_.bias ? contiguous(inputs[2]).data<void>() : nullptr;
    p.result = outputs[0].data<void>();
    for (int axis = 1; axis < static_cast<int>(w.ndim()) - 1; ++axis) {
      p.w_tap[axis + 4 - w.ndim()] = w.strides(axis);
    }
    if (settings_.transposed) {
      p.w_channel = w.strides(0);
      p.w_column = w.strides(-1);
      p.w_group = p.channels / p.groups * p.w_channel;
    } else {
      p.w_channel = w.strides(-1);
      p.w_column = w.strides(0);
      p.w_group = p.columns / p.groups * p.w_column;
    }
    auto parts = settings_.transposed ? phases(p, x.itemsize()) : std::vector<Convolution>{p};
    dispatch([parts = std::move(parts)] {
      for (const Convolution& part : parts) {
        kernels::convolution(part);
      }
    });
  }

  const char* name() const override {
    return settings_.transposed ? "TorchmlxConvTranspose" : "TorchmlxConvolution";
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    return settings_ == static_cast<const Node&>(other).settings_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>&) override {
    return {settings_.shape};
  }

 private:
  Settings settings_;
};

// Inputs x and the gradient of the result, then perhaps cached frames.
class WeightsNode : public Native {
 public:
  explicit WeightsNode(Settings settings) : settings_(std::move(settings)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    const mx::array x = contiguous(inputs[0]), gradient = contiguous(inputs[1]);
    const mx::array last = contiguous(inputs.back());
    allocate(outputs[0]);
    ConvWeights p{describe(settings_, x.shape(), settings_.shape, gradient.shape(),
                           settings_.cache ? last.shape(1) : 0),
                  gradient.data<void>(), outputs[0].data<void>()};
    p.of.type = *type_of(x);
    p.of.x = x.data<void>();
    p.of.cache = settings_.cache ? last.data<void>() : nullptr;
    p.of.w_channel = 1;
    int64_t step = settings_.shape.back();
    for (int i = 2; i >= 0; --i) {
      p.of.w_tap[i] = step;
      step *= p.of.kernel[i];
    }
    p.of.w_column = step;
    p.of.w_group = p.of.columns / p.of.groups * step;
    dispatch([p] { kernels::conv_weights(p); });
  }

  const char* name() const override { return "TorchmlxConvWeights"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return settings_ == static_cast<const WeightsNode&>(other).settings_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>&) override {
    return {settings_.shape};
  }

 private:
  Settings settings_;
};

template <class N>
mx::array node(Settings settings, std::vector<mx::array> inputs) {
  mx::Shape shape = settings.shape;
  mx::Dtype dtype = inputs[0].dtype();
  return mx::array(shape, dtype, std::make_shared<N>(std::move(settings)), std::move(inputs));
}

// x [B, .., C], weights [O, .., C / groups], cache [B, frames, H, W, C]; see kernels/conv3d.py.
std::optional<mx::array> convolution(const mx::array& x, const mx::array& w,
                                     const std::optional<mx::array>& bias,
                                     const std::optional<mx::array>& cache,
                                     const std::vector<int>& stride, const Padding& padding,
                                     bool upsample, const std::vector<int>& dilation, int groups) {
  if (!type_of(x)) {
    return std::nullopt;
  }
  Settings s{false,           bias.has_value(),   cache.has_value(),  upsample, groups,
             three(stride, 1), three(dilation, 1), {}, {x.shape(0)}};
  int cached = cache ? cache->shape(1) : 0, axes = static_cast<int>(x.ndim()) - 2;
  std::vector<int> before;
  for (int i = 0; i < axes; ++i) {
    auto [front, back] = padding[i];
    // Cached frames take the place of padding.
    int earlier = i == 0 ? cached : 0;
    int n = x.shape(i + 1) * (upsample && i >= axes - 2 ? 2 : 1);
    before.push_back(std::max(front, earlier));
    int rest = n + before.back() + back - dilation[i] * (w.shape(i + 1) - 1) - 1;
    s.shape.push_back(rest / stride[i] + 1);
  }
  s.before = three(before, 0);
  s.shape.push_back(w.shape(0));
  std::vector<mx::array> inputs{x, w};
  for (const auto& each : {bias, cache}) {
    if (each) {
      inputs.push_back(*each);
    }
  }
  return node<Node>(std::move(s), std::move(inputs));
}

// x [B, .., C], weights [C, .., O / groups]; see kernels/conv_transpose.py.
std::optional<mx::array> conv_transpose(const mx::array& x, const mx::array& w,
                                        const std::optional<mx::array>& bias,
                                        const std::vector<int>& stride, const Padding& padding,
                                        const std::vector<int>& dilation, int groups) {
  if (!type_of(x)) {
    return std::nullopt;
  }
  Settings s{true,            bias.has_value(),   false, false, groups,
             three(stride, 1), three(dilation, 1), {},    {x.shape(0)}};
  std::vector<int> before;
  for (int i = 0; i < static_cast<int>(x.ndim()) - 2; ++i) {
    auto [front, back] = padding[i];
    before.push_back(front);
    int full = (x.shape(i + 1) - 1) * stride[i] + dilation[i] * (w.shape(i + 1) - 1) + 1;
    s.shape.push_back(full - front - back);
  }
  s.before = three(before, 0);
  s.shape.push_back(w.shape(-1) * groups);
  std::vector<mx::array> inputs{x, w};
  if (bias) {
    inputs.push_back(*bias);
  }
  return node<Node>(std::move(s), std::move(inputs));
}

// x [B, .., C], gradient [B, .., O], cache [B, frames, H, W, C]; see kernels/conv_weights.py.
std::optional<mx::array> conv_weights(const mx::array& x, const mx::array& gradient,
                                      const std::optional<mx::array>& cache,
                                      const std::vector<int>& kernel,
                                      const std::vector<int>& stride, const Padding& padding,
                                      bool upsample, const std::vector<int>& dilation, int groups) {
  if (!type_of(x)) {
    return std::nullopt;
  }
  Settings s{false,           false,              cache.has_value(), upsample, groups,
             three(stride, 1), three(dilation, 1), {}, {gradient.shape(-1)}};
  std::vector<int> before;
  for (size_t i = 0; i < kernel.size(); ++i) {
    before.push_back(std::max(padding[i].first, i == 0 && cache ? cache->shape(1) : 0));
    s.shape.push_back(kernel[i]);
  }
  s.before = three(before, 0);
  s.shape.push_back(x.shape(-1) / groups);
  std::vector<mx::array> inputs{x, gradient};
  if (cache) {
    inputs.push_back(*cache);
  }
  return node<WeightsNode>(std::move(s), std::move(inputs));
}

}  // namespace

BIND(m) {
  m.def("convolution", convolution, "x"_a, "w"_a, "bias"_a.none() = nb::none(),
        "cache"_a.none() = nb::none(), nb::kw_only(), "stride"_a, "padding"_a, "upsample"_a,
        "dilation"_a, "groups"_a);
  m.def("conv_transpose", conv_transpose, "x"_a, "w"_a, "bias"_a.none() = nb::none(),
        nb::kw_only(), "stride"_a, "padding"_a, "dilation"_a, "groups"_a);
  m.def("conv_weights", conv_weights, "x"_a, "gradient"_a, "cache"_a.none() = nb::none(),
        nb::kw_only(), "kernel"_a, "stride"_a, "padding"_a, "upsample"_a, "dilation"_a, "groups"_a);
}

}  // namespace torchmlx
