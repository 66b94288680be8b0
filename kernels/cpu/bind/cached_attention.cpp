// A token of each sequence: its query and key turned, its key and value stored, its attention to what
// is stored; see kernels/cached_attention.py.
#include <algorithm>
#include <cstring>

#include "attention.h"
#include "bind/node.h"
#include "rope.h"
#include "runtime/copy.h"

namespace torchmlx {
namespace {

// All of it, as the stream's thread runs it. Queries are turned for all sequences, keys for one.
struct Task {
  Rope q, k;
  Attention attention;
  const char* v;
  char *keys, *values;
  const int* rows;
  int64_t item;

  void operator()() {
    int64_t slots = attention.keys, heads = attention.kv_heads, d = attention.d;
    std::vector<int> lengths(attention.batch);
    for (int64_t b = 0; b < attention.batch; ++b) {
      int64_t slot = (rows[b] % slots + slots) % slots;
      lengths[b] = static_cast<int>(std::clamp<int64_t>(rows[b] + int64_t{1}, 0, slots));
      int64_t token = b * heads * d * item, place = (b * heads * slots + slot) * d * item;
      Rope one = k;
      one.x = static_cast<const char*>(k.x) + token;
      one.out = keys + place;
      one.cos += b * k.batch_step * k.width;
      one.sin += b * k.batch_step * k.width;
      kernels::rope(one);
      for (int64_t h = 0; h < heads; ++h) {
        std::memcpy(values + place + h * slots * d * item, v + token + h * d * item, d * item);
      }
    }
    kernels::rope(q);
    attention.lengths = lengths.data();
    kernels::attention(attention);
  }
};

// Inputs q, k, v, cos, sin, keys, values, rows; outputs the result, keys and values.
class CachedAttentionNode : public Native {
 public:
  explicit CachedAttentionNode(float scale) : scale_(scale) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    // Each output names the inputs, which keeps them from being donated; one is enough.
    for (mx::array& each : outputs) {
      if (&each.inputs() != &inputs && !each.is_tracer()) {
        each.inputs().clear();
      }
    }
    allocate(outputs[0]);
    take(inputs[5], outputs[1]);
    take(inputs[6], outputs[2]);
    mx::array q = contiguous(inputs[0]), k = contiguous(inputs[1]), v = contiguous(inputs[2]);
    mx::array cos = contiguous(inputs[3]), sin = contiguous(inputs[4]);
    mx::array turned(q.shape(), q.dtype(), nullptr, {});
    allocate(turned);
    mx::cpu::get_command_encoder(stream()).add_temporary(turned);

    const mx::array& keys = outputs[1];
    int64_t batch = keys.shape(0), kv_heads = keys.shape(1), slots = keys.shape(2);
    int64_t d = keys.shape(3), heads = q.shape(2) / d;
    Rope rope{};
    rope.type = *type_of(q);
    rope.tokens = 1, rope.dims = d, rope.width = cos.shape(-1);
    rope.cos = cos.data<float>(), rope.sin = sin.data<float>();
    rope.table = static_cast<int64_t>(cos.size()) / rope.width;
    rope.batch_step = rope.table == 1 ? 0 : 1;
    rope.scale = 1;
    rope.rounded = true;
    Task task{rope, rope, {}, v.data<char>(), outputs[1].data<char>(), outputs[2].data<char>(),
              contiguous(inputs[7]).data<int>(), static_cast<int64_t>(q.itemsize())};
    task.q.x = q.data<void>(), task.q.out = turned.data<void>();
    task.q.batch = batch, task.q.heads = heads;
    task.q.x_batch = task.q.out_batch = heads * d;
    task.q.x_head = task.q.out_head = d;
    task.k.x = k.data<void>();
    task.k.batch = 1, task.k.heads = kv_heads;
    task.k.x_head = d, task.k.out_head = slots * d;
    task.attention = {
        .type = rope.type,
        .q = turned.data<void>(),
        .k = outputs[1].data<void>(),
        .v = outputs[2].data<void>(),
        .out = outputs[0].data<void>(),
        .q_strides = {heads * d, d, 0},
        .k_strides = {kv_heads * slots * d, slots * d, d},
        .v_strides = {kv_heads * slots * d, slots * d, d},
        .batch = batch,
        .heads = heads,
        .kv_heads = kv_heads,
        .queries = 1,
        .keys = slots,
        .d = d,
        .values = d,
        .scale = scale_,
    };
    dispatch(std::move(task));
  }

  const char* name() const override { return "TorchmlxCachedAttention"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return scale_ == static_cast<const CachedAttentionNode&>(other).scale_;
  }
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
    return {inputs[0].shape(), inputs[5].shape(), inputs[6].shape()};
  }

 private:
  // Lets `out` be x, to be written to: in its memory where nothing else holds it.
  void take(const mx::array& x, mx::array& out) {
    if (x.is_donatable() && x.flags().row_contiguous) {
      out.copy_shared_buffer(x);
      return;
    }
    allocate(out);
    Copy task{x.data<void>(), out.data<void>(), x.itemsize(), {}, {}};
    task.shape.assign(x.shape().begin(), x.shape().end());
    task.strides.assign(x.strides().begin(), x.strides().end());
    dispatch([task = std::move(task)] { copy(task); });
  }

  float scale_;
};

std::optional<std::vector<mx::array>> cached_attention(
    const mx::array& q, const mx::array& k, const mx::array& v, const mx::array& cos,
    const mx::array& sin, const mx::array& keys, const mx::array& values, const mx::array& rows,
    float scale) {
  if (!type_of(q)) {
    return std::nullopt;
  }
  auto as = [](const mx::array& x, mx::Dtype dtype) {
    return x.dtype() == dtype ? x : mx::astype(x, dtype, cpu_stream());
  };
  std::vector<mx::array> inputs{q,    k,      v,
                                as(cos, mx::float32), as(sin, mx::float32),
                                keys, values, as(rows, mx::int32)};
  auto node = std::make_shared<CachedAttentionNode>(scale);
  std::vector<mx::Shape> shapes = node->output_shapes(inputs);
  return mx::array::make_arrays(std::move(shapes), std::vector<mx::Dtype>(3, q.dtype()), node,
                                inputs);
}

}  // namespace

BIND(m) {
  m.def("cached_attention", returning(cached_attention), "q"_a, "k"_a, "v"_a, "cos"_a, "sin"_a,
        "keys"_a, "values"_a, "rows"_a, nb::kw_only(), "scale"_a);
}

}  // namespace torchmlx
