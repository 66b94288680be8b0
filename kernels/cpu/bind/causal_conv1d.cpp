// Depthwise causal convolution over time, which carries its last inputs along; see
// kernels/causal_conv1d.py.
#include "causal_conv1d.h"

#include "bind/node.h"

namespace torchmlx {
namespace {

struct Given {
  bool state, bias, padding, silu;
  bool operator==(const Given&) const = default;
};

// Inputs x, w, then state, bias and padding as far as there are any; outputs and the next state.
class CausalConv1dNode : public Native {
 public:
  explicit CausalConv1dNode(Given given) : given_(given) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    mx::array x = rows(inputs[0]), w = contiguous(inputs[1]);
    allocate(outputs[0]);
    allocate(outputs[1]);
    size_t next = 2;
    CausalConv1d problem{
        .type = *type_of(x),
        .x = x.data<void>(),
        .w = w.data<void>(),
        .state = given_.state ? contiguous(inputs[next++]).data<void>() : nullptr,
        .bias = given_.bias ? contiguous(inputs[next++]).data<void>() : nullptr,
        .padding = given_.padding ? contiguous(inputs[next]).data<int32_t>() : nullptr,
        .out = outputs[0].data<void>(),
        .next = outputs[1].data<void>(),
        .x_strides = {x.strides(0), x.strides(1)},
        .batch = x.shape(0),
        .tokens = x.shape(1),
        .channels = x.shape(2),
        .taps = w.shape(-1),
        .silu = given_.silu,
    };
    dispatch([problem] { kernels::causal_conv1d(problem); });
  }

  const char* name() const override { return "TorchmlxCausalConv1d"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return given_ == static_cast<const CausalConv1dNode&>(other).given_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    const mx::array& x = inputs[0];
    return {x.shape(), {x.shape(0), inputs[1].shape(-1) - 1, x.shape(2)}};
  }

 private:
  Given given_;
};

std::optional<std::vector<mx::array>> causal_conv1d(const mx::array& x, const mx::array& w,
                                                    const std::optional<mx::array>& state,
                                                    const std::optional<mx::array>& bias,
                                                    const std::optional<mx::array>& padding,
                                                    bool silu) {
  if (!type_of(x) || x.size() == 0 || (padding && padding->dtype() != mx::int32)) {
    return std::nullopt;
  }
  std::vector<mx::array> inputs{x, w};
  for (const auto& each : {state, bias, padding}) {
    if (each) {
      inputs.push_back(*each);
    }
  }
  auto primitive = std::make_shared<CausalConv1dNode>(
      Given{state.has_value(), bias.has_value(), padding.has_value(), silu});
  return mx::array::make_arrays(primitive->output_shapes(inputs), {x.dtype(), x.dtype()}, primitive,
                                inputs);
}

}  // namespace

BIND(m) {
  m.def("causal_conv1d", returning(causal_conv1d), "x"_a, "w"_a, "state"_a.none() = nb::none(),
        "bias"_a.none() = nb::none(), "padding"_a.none() = nb::none(), nb::kw_only(), "silu"_a);
}

}  // namespace torchmlx
