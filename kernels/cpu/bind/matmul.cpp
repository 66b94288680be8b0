// linear: x [..., k] @ w [n, k].T + bias [n]; matmul: a [..., m, k] @ b [..., k, n], whose leading
// axes broadcast.
#include "matmul.h"

#include "bind/linear.h"

namespace torchmlx {
namespace {

// The problem and the starts that it points to, in one piece that a task can own.
struct Task {
  Matmul problem;
  std::vector<int64_t> a_starts{0}, b_starts{0};

  void operator()() {
    problem.a_starts = a_starts.data();
    problem.b_starts = b_starts.data();
    kernels::matmul(problem);
  }
};

// Inputs x [..., k], w [n, k] and perhaps a bias [n].
class Linear : public Native {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    mx::array x = row_stride(inputs[0], 1) ? inputs[0] : contiguous(inputs[0]);
    std::optional<mx::array> bias;
    if (inputs.size() > 2) {
      bias = contiguous(inputs[2]);
    }
    Task task;
    task.problem = linear_problem(x, inputs[1], bias, outputs[0]);
    dispatch(std::move(task));
  }

  const char* name() const override { return "TorchmlxLinear"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    mx::Shape shape = inputs[0].shape();
    shape.back() = inputs[1].shape(0);
    return {shape};
  }
};

// Inputs a [..., m, k] and b [..., k, n] with the same leading axes.
class Product : public Native {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    const mx::array &a = inputs[0], &b = inputs[1];
    Task task;
    task.problem = {
        .type = *type_of(a),
        .a = a.data<void>(),
        .b = b.data<void>(),
        .bias = nullptr,
        .out = outputs[0].data<void>(),
        .m = a.shape(-2),
        .n = b.shape(-1),
        .k = a.shape(-1),
        .a_row = a.strides(-2),
        .a_k = a.strides(-1),
        .b_k = b.strides(-2),
        .b_column = b.strides(-1),
        .batch = 1,
        .a_starts = nullptr,
        .b_starts = nullptr,
    };
    std::optional<int64_t> row = row_stride(a, 1);
    if (row && shared(b)) {
      task.problem.m = rows_of(a, 1);
      task.problem.a_row = *row;
    } else {
      task.problem.batch = rows_of(a, 2);
      task.a_starts = starts(a);
      task.b_starts = starts(b);
    }
    dispatch(std::move(task));
  }

  const char* name() const override { return "TorchmlxMatmul"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    mx::Shape shape = inputs[0].shape();
    shape.back() = inputs[1].shape(-1);
    return {shape};
  }

 private:
  // Whether one matrix serves the whole batch.
  static bool shared(const mx::array& b) {
    for (int d = 0; d < static_cast<int>(b.ndim()) - 2; ++d) {
      if (b.shape(d) > 1 && b.strides(d) != 0) {
        return false;
      }
    }
    return true;
  }

  // Where each matrix of a batch starts, in elements.
  static std::vector<int64_t> starts(const mx::array& x) {
    std::vector<int64_t> result{0};
    for (int d = 0; d < static_cast<int>(x.ndim()) - 2; ++d) {
      std::vector<int64_t> finer;
      finer.reserve(result.size() * x.shape(d));
      for (int64_t start : result) {
        for (int i = 0; i < x.shape(d); ++i) {
          finer.push_back(start + i * x.strides(d));
        }
      }
      result = std::move(finer);
    }
    return result;
  }
};

mx::array node(mx::Shape shape, std::shared_ptr<mx::Primitive> primitive,
               std::vector<mx::array> inputs) {
  mx::Dtype dtype = inputs[0].dtype();
  return mx::array(std::move(shape), dtype, std::move(primitive), std::move(inputs));
}

std::optional<mx::array> linear(const mx::array& x, const mx::array& w,
                                const std::optional<mx::array>& bias) {
  if (!type_of(x)) {
    return std::nullopt;
  }
  mx::Shape shape = x.shape();
  shape.back() = w.shape(0);
  std::vector<mx::array> inputs{x, w};
  if (bias) {
    inputs.push_back(*bias);
  }
  return node(std::move(shape), std::make_shared<Linear>(), std::move(inputs));
}

std::optional<mx::array> matmul(const mx::array& a, const mx::array& b) {
  if (!type_of(a)) {
    return std::nullopt;
  }
  mx::Shape lead_a(a.shape().begin(), a.shape().end() - 2);
  mx::Shape lead_b(b.shape().begin(), b.shape().end() - 2);
  mx::Shape lead = mx::broadcast_shapes(lead_a, lead_b);
  auto spread = [&](const mx::array& x) {
    mx::Shape shape = lead;
    shape.insert(shape.end(), x.shape().end() - 2, x.shape().end());
    return x.shape() == shape ? x : mx::broadcast_to(x, shape, cpu_stream());
  };
  mx::Shape shape = lead;
  shape.push_back(a.shape(-2));
  shape.push_back(b.shape(-1));
  return node(std::move(shape), std::make_shared<Product>(), {spread(a), spread(b)});
}

}  // namespace

BIND(m) {
  m.def("linear", &linear, "x"_a, "w"_a, "bias"_a.none() = nb::none());
  m.def("matmul", &matmul, "a"_a, "b"_a);
}

}  // namespace torchmlx
