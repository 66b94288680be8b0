// The Python module. Each kernel's function builds a node of MLX's graph and returns it, or None for
// what it does not compute (float64, integers): the caller leaves that to MLX.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "copy.h"
#include "heads.h"
#include "pool.h"
#include "products.h"
#include "rows.h"

namespace nb = nanobind;
namespace mx = mlx::core;
using namespace nb::literals;

#define STRING_OF(x) #x
#define STRING(x) STRING_OF(x)

namespace {

using Arrays = std::optional<std::vector<mlx::core::array>>;

// One array as itself, several as a tuple.
nb::object results(const Arrays& arrays) {
  if (!arrays) {
    return nb::none();
  }
  return arrays->size() == 1 ? nb::cast(arrays->front()) : nb::tuple(nb::cast(*arrays));
}

// A function of the extension that returns what `results` makes of its arrays.
template <class... A>
auto returning(Arrays (*function)(A...)) {
  return [function](A... arguments) { return results(function(arguments...)); };
}

}  // namespace

NB_MODULE(_native, m) {
  using namespace torchmlx;
  // The headers' version, which importers compare with mlx.core's: libmlx has no stable ABI.
  m.attr("mlx_version") =
      STRING(MLX_VERSION_MAJOR) "." STRING(MLX_VERSION_MINOR) "." STRING(MLX_VERSION_PATCH);

  m.def("instruction_sets", &instruction_sets);
  m.def("instruction_set", &instruction_set);
  m.def("use_instruction_set", &use, "name"_a);
  m.def("threads", &threads);
  m.def("set_threads", &set_threads, "count"_a, nb::call_guard<nb::gil_scoped_release>());

  m.def("read_all",
        [](mx::array x) {
          x.eval();
          nb::gil_scoped_release free;
          return read_all(x.data<void>(), x.nbytes());
        },
        "x"_a);

  m.def("linear", &linear, "x"_a, "w"_a, "bias"_a.none() = nb::none());
  m.def("matmul", &matmul, "a"_a, "b"_a);
  m.def("attention", &attention, "q"_a, "k"_a, "v"_a, "mask"_a.none() = nb::none(),
        "lengths"_a.none() = nb::none(), "gate"_a.none() = nb::none(), nb::kw_only(), "causal"_a,
        "window"_a.none(), "scale"_a);
  m.def("softmax", &softmax, "x"_a, "axis"_a);
  m.def("log_softmax", &log_softmax, "x"_a, "axis"_a);
  m.def("rms_norm", returning(&rms_norm), "x"_a, "w"_a.none() = nb::none(),
        "residual"_a.none() = nb::none(), nb::kw_only(), "eps"_a, "offset"_a);
}
