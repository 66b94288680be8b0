// Softmax and its logarithm along an axis, not negative.
#include "softmax.h"

#include "bind/node.h"

namespace torchmlx {
namespace {

class SoftmaxNode : public Native {
 public:
  SoftmaxNode(int axis, bool logarithm) : axis_(axis), logarithm_(logarithm) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    mx::array x = contiguous(inputs[0]);
    Softmax problem{*type_of(x), x.data<void>(), outputs[0].data<void>(), 1, x.shape(axis_), 1,
                    logarithm_};
    for (int d = 0; d < static_cast<int>(x.ndim()); ++d) {
      (d < axis_ ? problem.outer : problem.inner) *= d == axis_ ? 1 : x.shape(d);
    }
    dispatch([problem] { kernels::softmax(problem); });
  }

  const char* name() const override { return "TorchmlxSoftmax"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    auto& that = static_cast<const SoftmaxNode&>(other);
    return axis_ == that.axis_ && logarithm_ == that.logarithm_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {inputs[0].shape()};
  }

 private:
  int axis_;
  bool logarithm_;
};

std::optional<mx::array> softmax_node(const mx::array& x, int axis, bool logarithm) {
  if (!type_of(x)) {
    return std::nullopt;
  }
  auto primitive = std::make_shared<SoftmaxNode>(axis, logarithm);
  return mx::array(x.shape(), x.dtype(), std::move(primitive), {x});
}

std::optional<mx::array> softmax(const mx::array& x, int axis) {
  return softmax_node(x, axis, false);
}

std::optional<mx::array> log_softmax(const mx::array& x, int axis) {
  return softmax_node(x, axis, true);
}

}  // namespace

BIND(m) {
  m.def("softmax", &softmax, "x"_a, "axis"_a);
  m.def("log_softmax", &log_softmax, "x"_a, "axis"_a);
}

}  // namespace torchmlx
