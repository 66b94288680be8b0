// x [tokens, k] through the experts gate_up [experts, 2 inner, k], down [experts, k, inner] that
// indices [tokens, slots] name, summed with weights [tokens, slots].
#include "moe_decode.h"

#include "bind/node.h"
#include "bind/scales.h"

namespace torchmlx {
namespace {

constexpr int BLOCK = 128;

MoeDecode::Scaling scaling(const mx::array& scale, int64_t n) {
  bool grid = scale.ndim() == 3;
  ScaleLayout layout =
      layout_of(false, grid ? scale.shape(1) : 1, grid ? scale.shape(2) : 1, n, BLOCK);
  return {scale.data<void>(), static_cast<int64_t>(scale.size()), layout.group,
          layout.height,      layout.row,                         layout.length};
}

// Inputs x, gate_up, down, indices, weights and perhaps scales of gate_up and of down.
class MoeNode : public Native {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    std::vector<mx::array> in;
    for (const mx::array& each : inputs) {
      in.push_back(contiguous(each));
    }
    bool codes = in.size() > 5;
    int64_t experts = in[2].shape(0), k = in[2].shape(1), inner = in[2].shape(2);
    constexpr int64_t ALL = std::numeric_limits<int64_t>::max();
    MoeDecode problem{
        .type = *type_of(in[0]),
        .weights_type = *type_of(in[4]),
        .scale_type = codes ? *type_of(in[5]) : Type::f32,
        .codes = codes,
        .x = in[0].data<void>(),
        .gate_up = in[1].data<void>(),
        .down = in[2].data<void>(),
        .indices = in[3].data<int32_t>(),
        .weights = in[4].data<void>(),
        .out = outputs[0].data<void>(),
        .tokens = in[3].shape(0),
        .slots = in[3].shape(1),
        .experts = experts,
        .inner = inner,
        .k = k,
        .up_scale = {nullptr, 0, 0, 2 * inner, 0, ALL},
        .down_scale = {nullptr, 0, 0, k, 0, ALL},
    };
    if (codes) {
      problem.up_scale = scaling(in[5], 2 * inner);
      problem.down_scale = scaling(in[6], k);
    }
    dispatch([problem] { kernels::moe_decode(problem); });
  }

  const char* name() const override { return "TorchmlxMoeDecode"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {inputs[0].shape()};
  }
};

std::optional<mx::array> moe_decode(const mx::array& x, const mx::array& gate_up,
                                    const mx::array& down, const mx::array& indices,
                                    const mx::array& weights, const std::optional<mx::array>& up,
                                    const std::optional<mx::array>& down_scale) {
  if (!type_of(x) || !type_of(weights) || x.size() == 0 || down.size() == 0 ||
      indices.size() == 0) {
    return std::nullopt;
  }
  std::vector<mx::array> inputs{x, gate_up, down, indices, weights};
  if (up && down_scale) {
    if (!type_of(*up) || up->dtype() != down_scale->dtype()) {
      return std::nullopt;
    }
    inputs.push_back(*up);
    inputs.push_back(*down_scale);
  }
  return mx::array(x.shape(), x.dtype(), std::make_shared<MoeNode>(), std::move(inputs));
}

BIND(m) {
  m.def("moe_decode", &moe_decode, "x"_a, "gate_up"_a, "down"_a, "indices"_a, "weights"_a,
        "gate_up_scale"_a.none() = nb::none(), "down_scale"_a.none() = nb::none());
}

}  // namespace
}  // namespace torchmlx
