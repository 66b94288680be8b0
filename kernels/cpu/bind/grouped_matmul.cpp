// grouped_matmul: a [m, k] with jagged rows times b [groups, k, n], or a [m, k] with jagged k times
// b [k, n]; fp8_grouped: x [m, k] with jagged rows times e4m3 weights [groups, n, k].
#include "grouped_matmul.h"

#include "bind/node.h"
#include "bind/scales.h"

namespace torchmlx {
namespace {

constexpr int BLOCK = 128;

// Inputs a, b and offs.
class GroupedNode : public Native {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    const mx::array &a = inputs[0], &b = inputs[1];
    mx::array offs = contiguous(inputs[2]);
    bool inner = b.ndim() == 2;
    GroupedMatmul problem{
        .type = *type_of(a),
        .inner = inner,
        .a = a.data<void>(),
        .b = b.data<void>(),
        .offs = offs.data<int32_t>(),
        .out = outputs[0].data<void>(),
        .groups = offs.shape(0),
        .m = a.shape(0),
        .n = b.shape(-1),
        .k = a.shape(1),
        .a_row = a.strides(0),
        .a_k = a.strides(1),
        .b_group = inner ? 0 : b.strides(0),
        .b_k = b.strides(-2),
        .b_column = b.strides(-1),
    };
    dispatch([problem] { kernels::grouped_matmul(problem); });
  }

  const char* name() const override { return "TorchmlxGroupedMatmul"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {shape_of(inputs[0], inputs[1], inputs[2])};
  }
  static mx::Shape shape_of(const mx::array& a, const mx::array& b, const mx::array& offs) {
    mx::Shape shape{a.shape(0), b.shape(-1)};
    if (b.ndim() == 2) {
      shape.insert(shape.begin(), offs.shape(0));
    }
    return shape;
  }
};

std::optional<mx::array> grouped_matmul(const mx::array& a, const mx::array& b,
                                        const mx::array& offs) {
  if (!type_of(a) || a.size() == 0 || b.size() == 0 || offs.size() == 0) {
    return std::nullopt;
  }
  return mx::array(GroupedNode::shape_of(a, b, offs), a.dtype(), std::make_shared<GroupedNode>(),
                   {a, b, offs});
}

// Inputs x, w, scale and offs.
class Fp8GroupedNode : public Native {
 public:
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    const mx::array& x = inputs[0];
    mx::array w = contiguous(inputs[1]), scale = contiguous(inputs[2]);
    mx::array offs = contiguous(inputs[3]);
    bool grid = scale.ndim() == 3, shared = scale.size() == 1;
    ScaleLayout layout = layout_of(shared, grid ? scale.shape(1) : 1, grid ? scale.shape(2) : 1,
                                   w.shape(1), BLOCK);
    Fp8Grouped problem{
        .type = *type_of(x),
        .scale_type = *type_of(scale),
        .x = x.data<void>(),
        .w = w.data<uint8_t>(),
        .scale = scale.data<void>(),
        .offs = offs.data<int32_t>(),
        .out = outputs[0].data<void>(),
        .groups = w.shape(0),
        .m = x.shape(0),
        .n = w.shape(1),
        .k = w.shape(2),
        .x_row = x.strides(0),
        .x_k = x.strides(1),
        .scales = layout.count,
        .scale_group = layout.group,
        .scale_height = layout.height,
        .scale_row = layout.row,
        .scale_length = layout.length,
    };
    dispatch([problem] { kernels::fp8_grouped(problem); });
  }

  const char* name() const override { return "TorchmlxFp8Grouped"; }
  bool is_equivalent(const mx::Primitive&) const override { return true; }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {{inputs[0].shape(0), inputs[1].shape(1)}};
  }
};

std::optional<mx::array> fp8_grouped(const mx::array& x, const mx::array& w,
                                     const mx::array& scale, const mx::array& offs) {
  if (!type_of(x) || !type_of(scale) || x.size() == 0 || w.size() == 0) {
    return std::nullopt;
  }
  return mx::array({x.shape(0), w.shape(1)}, x.dtype(), std::make_shared<Fp8GroupedNode>(),
                   {x, w, scale, offs});
}

BIND(m) {
  m.def("grouped_matmul", &grouped_matmul, "a"_a, "b"_a, "offs"_a);
  m.def("fp8_grouped", &fp8_grouped, "x"_a, "w"_a, "scale"_a, "offs"_a);
}

}  // namespace
}  // namespace torchmlx
