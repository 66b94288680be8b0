// x [..., k] @ (w [n, k] * scale).T + bias [n] with e4m3 codes w.
#include "fp8_matmul.h"

#include <limits>

#include "bind/node.h"

namespace torchmlx {
namespace {

// Inputs x, w, scale and perhaps a bias.
class Fp8Node : public Native {
 public:
  explicit Fp8Node(int block) : block_(block) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    mx::array x = row_stride(inputs[0], 1) ? inputs[0] : contiguous(inputs[0]);
    bool whole_rows = inputs[1].strides(1) == 1 || inputs[1].shape(1) == 1;
    mx::array w = whole_rows ? inputs[1] : contiguous(inputs[1]);
    mx::array scale = contiguous(inputs[2]);
    std::optional<mx::array> bias;
    if (inputs.size() > 3) {
      bias = contiguous(inputs[3]);
    }
    int64_t n = w.shape(0), k = w.shape(1);
    Fp8Matmul problem{
        .type = *type_of(x),
        .scale_type = *type_of(scale),
        .x = x.data<void>(),
        .w = w.data<uint8_t>(),
        .scale = scale.data<void>(),
        .bias = bias ? bias->data<void>() : nullptr,
        .out = outputs[0].data<void>(),
        .m = k ? static_cast<int64_t>(x.size()) / k : static_cast<int64_t>(outputs[0].size()) / n,
        .n = n,
        .k = k,
        .x_row = *row_stride(x, 1),
        .x_k = x.strides(-1),
        .w_row = w.strides(0),
        .scales = static_cast<int64_t>(scale.size()),
        .scale_height = n,
        .scale_row = 0,
        .scale_length = std::numeric_limits<int64_t>::max(),
    };
    if (scale.size() != 1) {
      bool rows = scale.shape(0) == n && scale.shape(1) == 1;
      problem.scale_height = rows ? 1 : block_;
      problem.scale_row = scale.shape(1);
      problem.scale_length = rows ? problem.scale_length : block_;
    }
    dispatch([problem] { kernels::fp8_matmul(problem); });
  }

  const char* name() const override { return "TorchmlxFp8Matmul"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return block_ == static_cast<const Fp8Node&>(other).block_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    mx::Shape shape = inputs[0].shape();
    shape.back() = inputs[1].shape(0);
    return {shape};
  }

 private:
  int block_;
};

std::optional<mx::array> fp8_matmul(const mx::array& x, const mx::array& w, const mx::array& scale,
                                    const std::optional<mx::array>& bias, int block) {
  bool stretches = scale.size() == 1 || scale.shape(1) == 1 || block % 64 == 0;
  if (!type_of(x) || !type_of(scale) || !stretches || w.shape(0) == 0) {
    return std::nullopt;
  }
  mx::Shape shape = x.shape();
  shape.back() = w.shape(0);
  std::vector<mx::array> inputs{x, w, scale};
  if (bias) {
    inputs.push_back(*bias);
  }
  return mx::array(std::move(shape), x.dtype(), std::make_shared<Fp8Node>(block),
                   std::move(inputs));
}

BIND(m) {
  m.def("fp8_matmul", &fp8_matmul, "x"_a, "w"_a, "scale"_a, "bias"_a.none() = nb::none(),
        nb::kw_only(), "block"_a);
}

}  // namespace
}  // namespace torchmlx
