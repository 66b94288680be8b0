// x [m, k] times w [n, k], both e4m3 codes, with scales on both sides.
#include "scaled_matmul.h"

#include "bind/node.h"
#include "bind/scales.h"

namespace torchmlx {
namespace {

constexpr int BLOCK = 128;

// Inputs x, w, x's scale, w's scale and perhaps a bias.
class ScaledNode : public Native {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    std::vector<mx::array> in;
    for (const mx::array& each : inputs) {
      in.push_back(contiguous(each));
    }
    mx::array& out = outputs[0];
    allocate(out);
    const mx::array &x = in[0], &w = in[1], &x_scale = in[2], &scale = in[3];
    bool one = x_scale.size() == 1, all = scale.size() == 1;
    ScaleLayout layout =
        layout_of(true, all ? 1 : scale.shape(0), all ? 1 : scale.shape(1), w.shape(0), BLOCK);
    ScaledMatmul problem{
        .out_type = type_of(out).value_or(Type::f32),
        .codes = !type_of(out),
        .x_scale_type = *type_of(x_scale),
        .scale_type = *type_of(scale),
        .bias_type = in.size() > 4 ? *type_of(in[4]) : Type::f32,
        .x = x.data<uint8_t>(),
        .w = w.data<uint8_t>(),
        .x_scale = x_scale.data<void>(),
        .scale = scale.data<void>(),
        .bias = in.size() > 4 ? in[4].data<void>() : nullptr,
        .out = out.data<void>(),
        .m = x.shape(0),
        .n = w.shape(0),
        .k = x.shape(1),
        .x_scale_row = one ? 0 : x_scale.shape(1),
        .x_length = BLOCK,
        .scales = layout.count,
        .scale_height = layout.height,
        .scale_row = layout.row,
        .scale_length = layout.length,
    };
    dispatch([problem] { kernels::scaled_matmul(problem); });
  }

  const char* name() const override { return "TorchmlxScaledMatmul"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {{inputs[0].shape(0), inputs[1].shape(0)}};
  }
};

std::optional<mx::array> scaled_matmul(const mx::array& x, const mx::array& w,
                                       const mx::array& scale_x, const mx::array& scale,
                                       const std::optional<mx::array>& bias, mx::Dtype dtype) {
  bool floating = type_of(scale_x) && type_of(scale) && (!bias || type_of(*bias));
  if (!floating || x.size() == 0 || w.size() == 0) {
    return std::nullopt;
  }
  std::vector<mx::array> inputs{x, w, scale_x, scale};
  if (bias) {
    inputs.push_back(*bias);
  }
  return mx::array({x.shape(0), w.shape(0)}, dtype, std::make_shared<ScaledNode>(),
                   std::move(inputs));
}

BIND(m) {
  m.def("scaled_matmul", &scaled_matmul, "x"_a, "w"_a, "scale_x"_a, "scale"_a,
        "bias"_a.none() = nb::none(), nb::kw_only(), "dtype"_a);
}

}  // namespace
}  // namespace torchmlx
