// x [..., k] times weights [n, k] that MLX quantised, with scales and perhaps biases of groups.
#include "quantized_matmul.h"

#include "bind/node.h"

namespace torchmlx {
namespace {

using Quantized = QuantizedMatmul;

// Inputs x, w, scales and perhaps biases.
class QuantizedNode : public Native {
 public:
  QuantizedNode(int group, Quantized::Codes codes, Quantized::Scaling scaling)
      : group_(group), codes_(codes), scaling_(scaling) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    mx::array x = row_stride(inputs[0], 1) ? inputs[0] : contiguous(inputs[0]);
    mx::array w = contiguous(inputs[1]), scales = contiguous(inputs[2]);
    std::optional<mx::array> biases;
    if (inputs.size() > 3) {
      biases = contiguous(inputs[3]);
    }
    int64_t k = x.shape(-1);
    Quantized problem{
        .type = *type_of(x),
        .codes = codes_,
        .scaling = scaling_,
        .scale_type = type_of(scales).value_or(Type::f32),
        .x = x.data<void>(),
        .w = w.data<uint8_t>(),
        .scales = scales.data<void>(),
        .biases = biases ? biases->data<void>() : nullptr,
        .out = outputs[0].data<void>(),
        .m = static_cast<int64_t>(x.size()) / k,
        .n = w.shape(0),
        .k = k,
        .group = group_,
        .x_row = *row_stride(x, 1),
        .x_k = x.strides(-1),
    };
    dispatch([problem] { kernels::quantized_matmul(problem); });
  }

  const char* name() const override { return "TorchmlxQuantizedMatmul"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    auto& that = static_cast<const QuantizedNode&>(other);
    return group_ == that.group_ && codes_ == that.codes_ && scaling_ == that.scaling_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    mx::Shape shape = inputs[0].shape();
    shape.back() = inputs[1].shape(0);
    return {shape};
  }

 private:
  int group_;
  Quantized::Codes codes_;
  Quantized::Scaling scaling_;
};

std::optional<mx::array> quantized_matmul(const mx::array& x, const mx::array& w,
                                          const mx::array& scales,
                                          const std::optional<mx::array>& biases, int group_size,
                                          int bits, const std::string& mode) {
  bool affine = mode == "affine";
  if (!type_of(x) || x.size() == 0 || w.size() == 0 || (bits != 4 && bits != 8) ||
      (affine && (!biases || !type_of(scales) || biases->dtype() != scales.dtype()))) {
    return std::nullopt;
  }
  auto codes = affine ? (bits == 4 ? Quantized::integers4 : Quantized::integers8)
                      : (bits == 4 ? Quantized::e2m1 : Quantized::e4m3);
  auto scaling = affine ? Quantized::floating
                        : (mode == "nvfp4" ? Quantized::e4m3_scales : Quantized::e8m0);
  mx::Shape shape = x.shape();
  shape.back() = w.shape(0);
  std::vector<mx::array> inputs{x, w, scales};
  if (biases) {
    inputs.push_back(*biases);
  }
  return mx::array(std::move(shape), x.dtype(),
                   std::make_shared<QuantizedNode>(group_size, codes, scaling), std::move(inputs));
}

BIND(m) {
  m.def("quantized_matmul", &quantized_matmul, "x"_a, "w"_a, "scales"_a,
        "biases"_a.none() = nb::none(), nb::kw_only(), "group_size"_a, "bits"_a, "mode"_a);
}

}  // namespace
}  // namespace torchmlx
