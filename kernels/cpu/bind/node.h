// What the nodes of MLX's graph and their Python functions share. A bind/NAME.cpp defines a node and
// ends in
//
//   BIND(m) { m.def("name", &name, "x"_a, ...); }
//
// where name returns std::optional of an array or of several: nothing for dtypes that the kernel does
// not compute, which the caller then leaves to MLX. The registry has checked the shapes.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernel.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace torchmlx {

namespace mx = mlx::core;
namespace nb = nanobind;
using namespace nb::literals;

// A file's part of the Python module.
struct Binding {
  using Define = void (*)(nb::module_&);
  explicit Binding(Define define) : define(define), next(first) { first = this; }

  Define define;
  Binding* next;
  inline static Binding* first = nullptr;
};

#define BIND(m)                   \
  static void bind(nb::module_&); \
  static Binding binding(bind);   \
  static void bind(nb::module_& m)

// The type of x, if the kernels compute in it.
std::optional<Type> type_of(const mx::array& x);

// The stream of the caller's thread for the CPU.
mx::Stream cpu_stream();

void allocate(mx::array& out);

// Runs on the CPU alone, lazily, on its stream's thread. Gradients are the registry's business.
class Native : public mx::Primitive, public std::enable_shared_from_this<Native> {
 public:
  Native() : mx::Primitive(cpu_stream()) {}

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error(std::string(name()) + " runs on the CPU only");
  }

  // One call for each index. The registry has a better rule, which takes the place of these calls
  // before they run; MLX asks for them all the same (0.32.4).
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(const std::vector<mx::array>& inputs,
                                                           const std::vector<int>& axes) override;

 protected:
  // Runs after the tasks that compute the inputs. It may hold pointers into inputs and outputs,
  // which MLX keeps until then.
  template <class F>
  void dispatch(F&& task) {
    mx::cpu::get_command_encoder(stream()).dispatch(std::forward<F>(task));
  }

  // x, or a row-contiguous copy of it that exists when later tasks run.
  mx::array contiguous(const mx::array& x);

  // x, or such a copy, in either of which the last axis is contiguous.
  mx::array rows(const mx::array& x) {
    return x.shape(-1) == 1 || x.strides(-1) == 1 ? x : contiguous(x);
  }
};

// What a function of several arrays returns to Python: one as itself, more as a tuple.
nb::object to_python(const std::optional<std::vector<mx::array>>& arrays);

// `function`, which returns several arrays, as BIND wants it.
template <class... A>
auto returning(std::optional<std::vector<mx::array>> (*function)(A...)) {
  return [function](A... arguments) { return to_python(function(arguments...)); };
}

// The stride at which all rows of x (its axes but the last `inner`) follow one another, if they do.
std::optional<int64_t> row_stride(const mx::array& x, int inner);

}  // namespace torchmlx
