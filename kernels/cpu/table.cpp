// The kernels of one instruction set.
#include "op.h"

namespace torchmlx::ISA {

#define X(name, Problem) void name(const Problem&);
TORCHMLX_KERNELS(X)
#undef X

extern const Kernels table;
const Kernels table = {
#define X(name, Problem) name,
    TORCHMLX_KERNELS(X)
#undef X
};

}  // namespace torchmlx::ISA
