// x turned by positions: see kernels/rope.py for what the arguments are.
#include "rope.h"

#include "bind/node.h"

namespace torchmlx {
namespace {

struct Form {
  float scale;
  bool interleaved;
  std::vector<int> sections;
  bool sections_interleaved, heads_last, rounded, inverse;
  auto operator<=>(const Form&) const = default;
};

// Inputs x, then the positions, then frequencies or cosines and sines, as far as there are any.
class RopeNode : public Native {
 public:
  RopeNode(bool placed, bool tables, Form form)
      : placed_(placed), tables_(tables), form_(std::move(form)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(outputs[0]);
    bool as_is = inputs[0].ndim() <= 4 && inputs[0].strides(-1) == 1;
    std::vector<mx::array> in{as_is ? inputs[0] : contiguous(inputs[0])};
    for (size_t i = 1; i < inputs.size(); ++i) {
      in.push_back(contiguous(inputs[i]));
    }
    Rope problem = axes_of(in[0]);
    problem.type = *type_of(in[0]);
    problem.x = in[0].data<void>();
    problem.out = outputs[0].data<void>();
    const mx::array &first = in[placed_ ? 2 : 1], &last = in.back();
    problem.positions = placed_ ? in[1].data<int>() : nullptr;
    problem.frequencies = tables_ ? nullptr : first.data<float>();
    problem.cos = tables_ ? first.data<float>() : nullptr;
    problem.sin = tables_ ? last.data<float>() : nullptr;
    problem.width = tables_ ? last.shape(-1) : 2 * last.shape(0);
    problem.table = tables_ ? static_cast<int64_t>(last.size()) / problem.width : 0;
    int64_t streams = form_.sections.empty() ? 1 : 3;
    int64_t rows = placed_ ? static_cast<int64_t>(in[1].size()) / streams : problem.table;
    problem.stream_step = rows;
    problem.batch_step = rows == problem.tokens ? 0 : problem.tokens;
    problem.sections = streams == 1 ? 0 : form_.sections_interleaved ? 2 : 1;
    for (size_t i = 0; i < 3; ++i) {
      problem.section[i] = i < form_.sections.size() ? form_.sections[i] : 0;
    }
    problem.scale = form_.scale;
    problem.interleaved = form_.interleaved;
    problem.inverse = form_.inverse;
    problem.rounded = form_.rounded;
    dispatch([problem] { kernels::rope(problem); });
  }

  const char* name() const override { return "TorchmlxRope"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    auto& that = static_cast<const RopeNode&>(other);
    return placed_ == that.placed_ && tables_ == that.tables_ && form_ == that.form_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {inputs[0].shape()};
  }

 private:
  // Sizes and strides of x as [B, H, L, D] or [B, L, H, D]; missing axes count as one.
  Rope axes_of(const mx::array& x) const {
    int64_t size[4] = {1, 1, 1, 1}, stride[4] = {}, packed[4];
    int ndim = static_cast<int>(x.ndim());
    for (int d = 0; d < ndim; ++d) {
      int axis = std::max(4 - ndim + d, 0);  // leading axes beyond four are contiguous
      size[axis] *= x.shape(d);
      stride[axis] = x.strides(d);
    }
    packed[3] = 1;
    for (int d = 2; d >= 0; --d) {
      packed[d] = packed[d + 1] * size[d + 1];
    }
    int head = form_.heads_last ? 2 : 1, token = 3 - head;
    Rope p{};
    p.batch = size[0], p.heads = size[head], p.tokens = size[token], p.dims = size[3];
    p.x_batch = stride[0], p.x_head = stride[head], p.x_token = stride[token];
    p.out_batch = packed[0], p.out_head = packed[head], p.out_token = packed[token];
    return p;
  }

  bool placed_, tables_;
  Form form_;
};

std::optional<mx::array> rope(const mx::array& x, const std::optional<mx::array>& positions,
                              const std::optional<mx::array>& frequencies,
                              const std::optional<mx::array>& cos,
                              const std::optional<mx::array>& sin, float scale, bool interleaved,
                              std::vector<int> sections, bool sections_interleaved,
                              bool heads_last, bool rounded, bool inverse) {
  if (!type_of(x) || x.size() == 0) {
    return std::nullopt;
  }
  auto as = [](const mx::array& a, mx::Dtype dtype) {
    return a.dtype() == dtype ? a : mx::astype(a, dtype, cpu_stream());
  };
  std::vector<mx::array> inputs{x};
  if (positions) {
    inputs.push_back(as(*positions, mx::int32));
  }
  if (frequencies) {
    inputs.push_back(as(*frequencies, mx::float32));
  } else {
    inputs.push_back(as(*cos, mx::float32));
    inputs.push_back(as(*sin, mx::float32));
  }
  Form form{scale,      interleaved, std::move(sections), sections_interleaved,
            heads_last, rounded,     inverse};
  auto node = std::make_shared<RopeNode>(positions.has_value(), !frequencies, std::move(form));
  return mx::array(x.shape(), x.dtype(), std::move(node), std::move(inputs));
}

}  // namespace

BIND(m) {
  m.def("rope", &rope, "x"_a, "positions"_a.none() = nb::none(),
        "frequencies"_a.none() = nb::none(), "cos"_a.none() = nb::none(),
        "sin"_a.none() = nb::none(), nb::kw_only(), "scale"_a = 1.0f, "interleaved"_a = false,
        "sections"_a = std::vector<int>(), "sections_interleaved"_a = false,
        "heads_last"_a = false, "rounded"_a = true, "inverse"_a = false);
}

}  // namespace torchmlx
