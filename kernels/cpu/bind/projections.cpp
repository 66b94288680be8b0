// x [..., k] times three weights [n_i, k], plus biases; see kernels/projections.py.
#include "projections.h"

#include "bind/linear.h"

namespace torchmlx {
namespace {

// Inputs x, three weights, and the biases of those that have one.
class ProjectionsNode : public Native {
 public:
  explicit ProjectionsNode(std::vector<bool> biased) : biased_(std::move(biased)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    mx::array x = row_stride(inputs[0], 1) ? inputs[0] : contiguous(inputs[0]);
    Projections problem;
    size_t next = 4;
    for (size_t i = 0; i < 3; ++i) {
      allocate(outputs[i]);
      std::optional<mx::array> bias;
      if (biased_[i]) {
        bias = contiguous(inputs[next++]);
      }
      problem.parts[i] = linear_problem(x, inputs[1 + i], bias, outputs[i]);
    }
    dispatch([problem] { kernels::projections(problem); });
  }

  const char* name() const override { return "TorchmlxProjections"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return biased_ == static_cast<const ProjectionsNode&>(other).biased_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    std::vector<mx::Shape> shapes;
    for (size_t i = 0; i < 3; ++i) {
      shapes.push_back(inputs[0].shape());
      shapes.back().back() = inputs[1 + i].shape(0);
    }
    return shapes;
  }

 private:
  std::vector<bool> biased_;
};

using Bias = std::optional<mx::array>;

std::optional<std::vector<mx::array>> projections(const mx::array& x, const mx::array& q,
                                                  const mx::array& k, const mx::array& v,
                                                  const Bias& q_bias, const Bias& k_bias,
                                                  const Bias& v_bias) {
  if (!type_of(x)) {
    return std::nullopt;
  }
  std::vector<mx::array> inputs{x, q, k, v};
  std::vector<bool> biased;
  for (const Bias* bias : {&q_bias, &k_bias, &v_bias}) {
    biased.push_back(bias->has_value());
    if (*bias) {
      inputs.push_back(**bias);
    }
  }
  auto node = std::make_shared<ProjectionsNode>(std::move(biased));
  std::vector<mx::Shape> shapes = node->output_shapes(inputs);
  return mx::array::make_arrays(std::move(shapes), std::vector<mx::Dtype>(3, x.dtype()), node,
                                inputs);
}

}  // namespace

BIND(m) {
  m.def("projections", returning(projections), "x"_a, "q"_a, "k"_a, "v"_a,
        "q_bias"_a.none() = nb::none(), "k_bias"_a.none() = nb::none(),
        "v_bias"_a.none() = nb::none());
}

}  // namespace torchmlx
