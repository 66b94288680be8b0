// The k most likely experts of each row and their weights; see kernels/router.py.
#include "router.h"

#include "bind/node.h"

namespace torchmlx {
namespace {

class RouterNode : public Native {
 public:
  RouterNode(int k, bool normalise) : k_(k), normalise_(normalise) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    allocate(outputs[1]);
    mx::array x = contiguous(inputs[0]);
    int64_t experts = x.shape(-1);
    Router problem{*type_of(x),
                   x.data<void>(),
                   outputs[0].data<void>(),
                   outputs[1].data<int32_t>(),
                   static_cast<int64_t>(x.size()) / experts,
                   experts,
                   k_,
                   normalise_};
    dispatch([problem] { kernels::router(problem); });
  }

  const char* name() const override { return "TorchmlxRouter"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    auto& that = static_cast<const RouterNode&>(other);
    return k_ == that.k_ && normalise_ == that.normalise_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    mx::Shape shape = inputs[0].shape();
    shape.back() = k_;
    return {shape, shape};
  }

 private:
  int k_;
  bool normalise_;
};

std::optional<std::vector<mx::array>> router(const mx::array& logits, int k, bool normalise) {
  if (!type_of(logits) || logits.size() == 0) {
    return std::nullopt;
  }
  auto primitive = std::make_shared<RouterNode>(k, normalise);
  return mx::array::make_arrays(primitive->output_shapes({logits}), {logits.dtype(), mx::int32},
                                primitive, {logits});
}

}  // namespace

BIND(m) {
  m.def("router", returning(router), "logits"_a, nb::kw_only(), "k"_a, "normalise"_a);
}

}  // namespace torchmlx
