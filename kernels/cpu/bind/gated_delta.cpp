// The gated delta rule: o and the state after the last time; see kernels/gated_delta.py.
#include "gated_delta.h"

#include <algorithm>
#include <cmath>

#include "bind/node.h"

namespace torchmlx {
namespace {

// Inputs q, k, v, g, beta and perhaps the state; outputs o and the next state.
class GatedDeltaNode : public Native {
 public:
  GatedDeltaNode(bool normalise, float scale) : normalise_(normalise), scale_(scale) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    mx::array q = rows(inputs[0]), k = rows(inputs[1]), v = rows(inputs[2]);
    mx::array g = contiguous(inputs[3]), beta = contiguous(inputs[4]);
    allocate(outputs[0]);
    const float* state = nullptr;
    if (inputs.size() > 5) {
      const mx::array& before = inputs[5];
      if (before.is_donatable() && before.flags().row_contiguous) {
        outputs[1].copy_shared_buffer(before);
        state = outputs[1].data<float>();
      } else {
        allocate(outputs[1]);
        state = contiguous(before).data<float>();
      }
    } else {
      allocate(outputs[1]);
    }
    GatedDelta problem{
        .type = *type_of(q),
        .g_type = *type_of(g),
        .beta_type = *type_of(beta),
        .q = q.data<void>(),
        .k = k.data<void>(),
        .v = v.data<void>(),
        .g = g.data<void>(),
        .beta = beta.data<void>(),
        .state = state,
        .out = outputs[0].data<void>(),
        .next = outputs[1].data<float>(),
        .batch = q.shape(0),
        .tokens = q.shape(1),
        .key_heads = q.shape(2),
        .heads = v.shape(2),
        .dk = q.shape(3),
        .dv = v.shape(3),
        .normalise = normalise_,
        .scale = scale_,
    };
    std::copy_n(q.strides().begin(), 3, problem.q_strides);
    std::copy_n(k.strides().begin(), 3, problem.k_strides);
    std::copy_n(v.strides().begin(), 3, problem.v_strides);
    dispatch([problem] { kernels::gated_delta(problem); });
  }

  const char* name() const override { return "TorchmlxGatedDelta"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    auto& that = static_cast<const GatedDeltaNode&>(other);
    return normalise_ == that.normalise_ && scale_ == that.scale_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    const mx::array &q = inputs[0], &v = inputs[2];
    return {v.shape(), {q.shape(0), v.shape(2), q.shape(3), v.shape(3)}};
  }

 private:
  bool normalise_;
  float scale_;
};

std::optional<std::vector<mx::array>> gated_delta(const mx::array& q, const mx::array& k,
                                                  const mx::array& v, const mx::array& g,
                                                  const mx::array& beta,
                                                  const std::optional<mx::array>& state,
                                                  bool normalise, std::optional<float> scale) {
  if (!type_of(q) || !type_of(g) || !type_of(beta) || q.size() == 0 || v.size() == 0) {
    return std::nullopt;
  }
  std::vector<mx::array> inputs{q, k, v, g, beta};
  if (state) {
    inputs.push_back(*state);
  }
  float factor = scale.value_or(1.0f / std::sqrt(static_cast<float>(q.shape(3))));
  auto primitive = std::make_shared<GatedDeltaNode>(normalise, factor);
  return mx::array::make_arrays(primitive->output_shapes(inputs), {q.dtype(), mx::float32},
                                primitive, inputs);
}

}  // namespace

BIND(m) {
  m.def("gated_delta", returning(gated_delta), "q"_a, "k"_a, "v"_a, "g"_a, "beta"_a,
        "state"_a.none() = nb::none(), nb::kw_only(), "normalise"_a, "scale"_a.none());
}

}  // namespace torchmlx
