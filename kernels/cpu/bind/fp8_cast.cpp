// Casts of arrays to e4m3 codes (uint8) and back.
#include "fp8_cast.h"

#include "bind/node.h"

namespace torchmlx {
namespace {

class Fp8CastNode : public Native {
 public:
  explicit Fp8CastNode(bool narrows) : narrows_(narrows) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    mx::array x = contiguous(inputs[0]);
    Fp8Cast problem{
        .type = *type_of(narrows_ ? x : outputs[0]),
        .narrows = narrows_,
        .x = x.data<void>(),
        .out = outputs[0].data<void>(),
        .count = static_cast<int64_t>(x.size()),
    };
    dispatch([problem] { kernels::fp8_cast(problem); });
  }

  const char* name() const override { return "TorchmlxFp8Cast"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return narrows_ == static_cast<const Fp8CastNode&>(other).narrows_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {inputs[0].shape()};
  }

 private:
  bool narrows_;
};

std::optional<mx::array> fp8_cast(const mx::array& x, mx::Dtype dtype) {
  bool narrows = dtype == mx::uint8;
  mx::array out(x.shape(), dtype, std::make_shared<Fp8CastNode>(narrows), {x});
  if (narrows ? !type_of(x) : !type_of(out) || x.dtype() != mx::uint8) {
    return std::nullopt;
  }
  return out;
}

BIND(m) {
  m.def("fp8_cast", &fp8_cast, "x"_a, nb::kw_only(), "dtype"_a);
}

}  // namespace
}  // namespace torchmlx
