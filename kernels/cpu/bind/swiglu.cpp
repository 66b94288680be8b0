// silu(x @ gate.T) * (x @ up.T), of one array that holds both weights or of two; see
// kernels/swiglu.py.
#include "swiglu.h"

#include "bind/linear.h"

namespace torchmlx {
namespace {

// Rows up to which the kernel needs no memory for the second product, as in gemv.h.
constexpr int64_t FEW_ROWS = 8;

// Inputs x [..., k] and weights [2 n, k], or [n, k] twice.
class SwigluNode : public Native {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    mx::array& out = outputs[0];
    allocate(out);
    mx::array x = row_stride(inputs[0], 1) ? inputs[0] : contiguous(inputs[0]);
    const mx::array& w = inputs[1];
    Swiglu problem{linear_problem(x, w, std::nullopt, out), {}, false};
    if (inputs.size() > 2) {
      problem.up = linear_problem(x, inputs[2], std::nullopt, out);
    } else {
      problem.gate.n /= 2;
      problem.up = problem.gate;
      problem.up.b = w.data<char>() + problem.gate.n * w.strides(0) * w.itemsize();
    }
    problem.few = problem.gate.m <= FEW_ROWS && problem.gate.k > 0 && problem.gate.b_k == 1 &&
                  problem.up.b_k == 1;
    if (!problem.few) {
      mx::array product(out.shape(), out.dtype(), nullptr, {});
      allocate(product);
      problem.up.out = product.data<void>();
      mx::cpu::get_command_encoder(stream()).add_temporary(product);
    }
    dispatch([problem] { kernels::swiglu(problem); });
  }

  const char* name() const override { return "TorchmlxSwiglu"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    mx::Shape shape = inputs[0].shape();
    shape.back() = inputs[1].shape(0) / (inputs.size() > 2 ? 1 : 2);
    return {shape};
  }
};

std::optional<mx::array> swiglu(const mx::array& x, const mx::array& gate,
                                const std::optional<mx::array>& up) {
  if (!type_of(x)) {
    return std::nullopt;
  }
  std::vector<mx::array> inputs{x, gate};
  if (up) {
    inputs.push_back(*up);
  }
  auto node = std::make_shared<SwigluNode>();
  mx::Shape shape = node->output_shapes(inputs)[0];
  return mx::array(std::move(shape), x.dtype(), std::move(node), std::move(inputs));
}

}  // namespace

BIND(m) { m.def("swiglu", &swiglu, "x"_a, "gate"_a, "up"_a.none() = nb::none()); }

}  // namespace torchmlx
