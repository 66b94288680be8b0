// softmax(q @ k.T * scale + mask) @ v, with a 4-d mask that broadcasts, lengths [B] in int32, and the
// result times the gate's sigmoid; see kernels/attention.py.
#include "attention.h"

#include "bind/node.h"

namespace torchmlx {
namespace {

struct Options {
  bool mask, lengths, gate, causal;
  int window;
  float scale;
  bool operator==(const Options&) const = default;
};

// Inputs q, k, v, then mask, lengths and gate as far as there are any.
class AttentionNode : public Native {
 public:
  explicit AttentionNode(Options options) : options_(options) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    mx::array q = rows(inputs[0]), k = rows(inputs[1]), v = rows(inputs[2]);
    Attention problem{
        .type = *type_of(q),
        .q = q.data<void>(),
        .k = k.data<void>(),
        .v = v.data<void>(),
        .out = outputs[0].data<void>(),
        .batch = q.shape(0),
        .heads = q.shape(1),
        .kv_heads = k.shape(1),
        .queries = q.shape(2),
        .keys = k.shape(2),
        .d = q.shape(3),
        .values = v.shape(3),
        .causal = options_.causal,
        .window = options_.window,
        .scale = options_.scale,
    };
    strides(q, problem.q_strides);
    strides(k, problem.k_strides);
    strides(v, problem.v_strides);
    size_t next = 3;
    if (options_.mask) {
      const mx::array& mask = inputs[next++];
      problem.mask = mask.data<void>();
      problem.boolean = mask.dtype() == mx::bool_;
      problem.mask_type = type_of(mask).value_or(Type::f32);
      strides(mask, problem.mask_strides);
    }
    if (options_.lengths) {
      problem.lengths = contiguous(inputs[next++]).data<int>();
    }
    if (options_.gate) {
      problem.gate = contiguous(inputs[next]).data<void>();
    }
    dispatch([problem] { kernels::attention(problem); });
  }

  const char* name() const override { return "TorchmlxAttention"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return options_ == static_cast<const AttentionNode&>(other).options_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    mx::Shape shape = inputs[0].shape();
    shape.back() = inputs[2].shape(-1);
    return {shape};
  }

 private:
  // The strides of x as far as `to` has room, 0 along axes of one.
  template <size_t N>
  static void strides(const mx::array& x, int64_t (&to)[N]) {
    for (size_t d = 0; d < N; ++d) {
      to[d] = x.shape(d) == 1 ? 0 : x.strides(d);
    }
  }

  Options options_;
};

std::optional<mx::array> attention(const mx::array& q, const mx::array& k, const mx::array& v,
                                   const std::optional<mx::array>& mask,
                                   const std::optional<mx::array>& lengths,
                                   const std::optional<mx::array>& gate, bool causal,
                                   std::optional<int> window, float scale) {
  if (!type_of(q) || (mask && mask->dtype() != mx::bool_ && !type_of(*mask))) {
    return std::nullopt;
  }
  std::vector<mx::array> inputs{q, k, v};
  for (const auto& each : {mask, lengths, gate}) {
    if (each) {
      inputs.push_back(*each);
    }
  }
  mx::Shape shape = q.shape();
  shape.back() = v.shape(-1);
  Options options{mask.has_value(), lengths.has_value(), gate.has_value(), causal,
                  window.value_or(0), scale};
  return mx::array(std::move(shape), q.dtype(), std::make_shared<AttentionNode>(options),
                   std::move(inputs));
}

}  // namespace

BIND(m) {
  m.def("attention", &attention, "q"_a, "k"_a, "v"_a, "mask"_a.none() = nb::none(),
        "lengths"_a.none() = nb::none(), "gate"_a.none() = nb::none(), nb::kw_only(), "causal"_a,
        "window"_a.none(), "scale"_a);
}

}  // namespace torchmlx
