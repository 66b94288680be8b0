// The norm of x; with a residual, the norm of their sum and the sum.
#include "rms_norm.h"

#include "bind/node.h"

namespace torchmlx {
namespace {

// Inputs x, then the weight and the residual as far as there are any; outputs the norm and, with a
// residual, the sum.
class RmsNormNode : public Native {
 public:
  RmsNormNode(bool weighted, bool summed, float eps, float offset, bool silu)
      : weighted_(weighted), summed_(summed), eps_(eps), offset_(offset), silu_(silu) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    std::vector<mx::array> in;
    for (const mx::array& each : inputs) {
      in.push_back(contiguous(each));
    }
    for (mx::array& each : outputs) {
      allocate(each);
    }
    const mx::array& x = in[0];
    int64_t n = x.shape(-1);
    RmsNorm problem{
        .type = *type_of(x),
        .weight_type = weighted_ ? *type_of(in[1]) : Type::f32,
        .x = x.data<void>(),
        .weight = weighted_ ? in[1].data<void>() : nullptr,
        .residual = summed_ ? in.back().data<void>() : nullptr,
        .out = outputs[0].data<void>(),
        .total = summed_ ? outputs[1].data<void>() : nullptr,
        .rows = n ? static_cast<int64_t>(x.size()) / n : 0,
        .n = n,
        .eps = eps_,
        .offset = offset_,
        .silu = silu_,
    };
    dispatch([problem] { kernels::rms_norm(problem); });
  }

  const char* name() const override { return "TorchmlxRmsNorm"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    auto& that = static_cast<const RmsNormNode&>(other);
    return weighted_ == that.weighted_ && summed_ == that.summed_ && eps_ == that.eps_ &&
           offset_ == that.offset_ && silu_ == that.silu_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return std::vector<mx::Shape>(summed_ ? 2 : 1, inputs[0].shape());
  }

 private:
  bool weighted_, summed_;
  float eps_, offset_;
  bool silu_;
};

std::optional<std::vector<mx::array>> rms_norm(const mx::array& x,
                                               const std::optional<mx::array>& weight,
                                               const std::optional<mx::array>& residual, float eps,
                                               float offset, bool silu) {
  if (!type_of(x) || (weight && !type_of(*weight))) {
    return std::nullopt;
  }
  std::vector<mx::array> inputs{x};
  if (weight) {
    inputs.push_back(*weight);
  }
  if (residual) {
    inputs.push_back(*residual);
  }
  auto primitive = std::make_shared<RmsNormNode>(weight.has_value(), residual.has_value(), eps,
                                                 offset, silu);
  size_t count = residual ? 2 : 1;
  return mx::array::make_arrays(std::vector<mx::Shape>(count, x.shape()),
                                std::vector<mx::Dtype>(count, x.dtype()), primitive, inputs);
}

}  // namespace

BIND(m) {
  m.def("rms_norm", returning(rms_norm), "x"_a, "w"_a.none() = nb::none(),
        "residual"_a.none() = nb::none(), nb::kw_only(), "eps"_a, "offset"_a,
        "silu"_a = false);
}

}  // namespace torchmlx
