#include "bind/node.h"

#include "runtime/copy.h"

namespace torchmlx {

std::optional<Type> type_of(const mx::array& x) {
  if (x.dtype() == mx::float32) {
    return Type::f32;
  }
  if (x.dtype() == mx::float16) {
    return Type::f16;
  }
  if (x.dtype() == mx::bfloat16) {
    return Type::bf16;
  }
  return std::nullopt;
}

mx::Stream cpu_stream() { return mx::default_stream(mx::Device::cpu); }

void allocate(mx::array& out) { out.set_data(mx::allocator::malloc(out.nbytes())); }

mx::array Native::contiguous(const mx::array& x) {
  if (x.flags().row_contiguous) {
    return x;
  }
  mx::array result(x.shape(), x.dtype(), nullptr, {});
  allocate(result);
  Copy task{x.data<void>(), result.data<void>(), x.itemsize(), {}, {}};
  task.shape.assign(x.shape().begin(), x.shape().end());
  task.strides.assign(x.strides().begin(), x.strides().end());
  dispatch([task = std::move(task)] { copy(task); });
  mx::cpu::get_command_encoder(stream()).add_temporary(result);
  return result;
}

std::pair<std::vector<mx::array>, std::vector<int>> Native::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  int count = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    count = axes[i] < 0 ? count : inputs[i].shape(axes[i]);
  }
  std::vector<std::vector<mx::array>> results;
  for (int index = 0; index < count; ++index) {
    std::vector<mx::array> one;
    for (size_t i = 0; i < inputs.size(); ++i) {
      one.push_back(axes[i] < 0 ? inputs[i] : mx::take(inputs[i], index, axes[i], stream()));
    }
    std::vector<mx::Shape> shapes = output_shapes(one);
    std::vector<mx::Dtype> dtypes(shapes.size(), inputs[0].dtype());
    auto outputs = mx::array::make_arrays(shapes, dtypes, shared_from_this(), one);
    results.resize(outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      results[i].push_back(outputs[i]);
    }
  }
  std::vector<mx::array> stacked;
  for (const auto& each : results) {
    stacked.push_back(mx::stack(each, 0, stream()));
  }
  return {stacked, std::vector<int>(stacked.size(), 0)};
}

nb::object to_python(const std::optional<std::vector<mx::array>>& arrays) {
  if (!arrays) {
    return nb::none();
  }
  return arrays->size() == 1 ? nb::cast(arrays->front()) : nb::tuple(nb::cast(*arrays));
}

std::optional<int64_t> row_stride(const mx::array& x, int inner) {
  int64_t stride = 0;
  std::optional<int64_t> next;  // any number once it is known: reversed rows have negative strides
  for (int d = static_cast<int>(x.ndim()) - inner - 1; d >= 0; --d) {
    if (x.shape(d) == 1) {
      continue;
    }
    if (!next) {
      stride = x.strides(d);
    } else if (x.strides(d) != *next) {
      return std::nullopt;
    }
    next = x.strides(d) * x.shape(d);
  }
  return stride;
}

}  // namespace torchmlx
