// The Python module: its settings here, each kernel's function in the kernel's own file.
#include "bind/node.h"
#include "runtime/copy.h"
#include "runtime/isa.h"
#include "runtime/pool.h"

#define STRING_OF(x) #x
#define STRING(x) STRING_OF(x)

NB_MODULE(_native, m) {
  using namespace torchmlx;
  // The headers' version, which importers compare with mlx.core's: libmlx has no stable ABI.
  m.attr("mlx_version") =
      STRING(MLX_VERSION_MAJOR) "." STRING(MLX_VERSION_MINOR) "." STRING(MLX_VERSION_PATCH);
  // A hash of this folder's files at the time of the build.
  m.attr("interface") = STRING(INTERFACE);

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

  for (Binding* binding = Binding::first; binding; binding = binding->next) {
    binding->define(m);
  }
}
