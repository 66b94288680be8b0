// mx.compile without fused kernels. On the CPU MLX writes those as C++ and has the machine's compiler
// build each one; Python has no switch for it.
#include "bind/node.h"
#include "mlx/compile.h"

namespace torchmlx {

BIND(m) {
  m.def("fuse", [](bool on) {
    mx::set_compile_mode(on ? mx::CompileMode::enabled : mx::CompileMode::no_fuse);
  }, "on"_a);
}

}  // namespace torchmlx
