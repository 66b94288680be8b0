// Layer norm over the last axis, group norm over groups of channels and all that follows them.
#include "layer_norm.h"

#include "bind/node.h"

namespace torchmlx {
namespace {

// Inputs x, then the weight and the bias as far as there are any.
class LayerNormNode : public Native {
 public:
  // groups 0: over the last axis; otherwise x is [batch, channels, ..].
  LayerNormNode(bool weighted, bool biased, int groups, float eps)
      : weighted_(weighted), biased_(biased), groups_(groups), eps_(eps) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    std::vector<mx::array> in;
    for (const mx::array& each : inputs) {
      in.push_back(contiguous(each));
    }
    allocate(outputs[0]);
    const mx::array& x = in[0];
    int64_t size = x.size(), channels = groups_ ? x.shape(1) : x.shape(-1);
    int64_t rows = groups_ ? static_cast<int64_t>(x.shape(0)) * groups_ : size / channels;
    int64_t n = size / rows;
    LayerNorm problem{
        .type = *type_of(x),
        .weight_type = in.size() > 1 ? *type_of(in[1]) : Type::f32,
        .x = x.data<void>(),
        .weight = weighted_ ? in[1].data<void>() : nullptr,
        .bias = biased_ ? in.back().data<void>() : nullptr,
        .out = outputs[0].data<void>(),
        .rows = rows,
        .n = n,
        .inner = groups_ ? n * groups_ / channels : 1,
        .groups = groups_ ? groups_ : 1,
        .eps = eps_,
    };
    dispatch([problem] { kernels::layer_norm(problem); });
  }

  const char* name() const override { return "TorchmlxLayerNorm"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    auto& that = static_cast<const LayerNormNode&>(other);
    return weighted_ == that.weighted_ && biased_ == that.biased_ && groups_ == that.groups_ &&
           eps_ == that.eps_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {inputs[0].shape()};
  }

 private:
  bool weighted_, biased_;
  int groups_;
  float eps_;
};

std::optional<mx::array> group_norm(const mx::array& x, const std::optional<mx::array>& weight,
                                    const std::optional<mx::array>& bias, int groups, float eps) {
  bool known = type_of(x) && x.size() > 0 && (!weight || type_of(*weight)) &&
               (!bias || type_of(*bias)) && (!weight || !bias || weight->dtype() == bias->dtype());
  if (!known) {
    return std::nullopt;
  }
  std::vector<mx::array> inputs{x};
  for (const auto& each : {weight, bias}) {
    if (each) {
      inputs.push_back(*each);
    }
  }
  auto primitive =
      std::make_shared<LayerNormNode>(weight.has_value(), bias.has_value(), groups, eps);
  return mx::array(x.shape(), x.dtype(), primitive, std::move(inputs));
}

std::optional<mx::array> layer_norm(const mx::array& x, const std::optional<mx::array>& weight,
                                    const std::optional<mx::array>& bias, float eps) {
  return group_norm(x, weight, bias, 0, eps);
}

}  // namespace

BIND(m) {
  m.def("layer_norm", layer_norm, "x"_a, "w"_a.none() = nb::none(), "bias"_a.none() = nb::none(),
        nb::kw_only(), "eps"_a);
  m.def("group_norm", group_norm, "x"_a, "w"_a.none() = nb::none(), "bias"_a.none() = nb::none(),
        nb::kw_only(), "groups"_a, "eps"_a);
}

}  // namespace torchmlx
