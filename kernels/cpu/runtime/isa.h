// The instruction sets that this build has kernels for, and the one in use (see kernel.h).
#pragma once

#include <string>
#include <vector>

namespace torchmlx {

// Names of those this machine can run, best first; the last is "portable". "amx" is the kernels for
// AVX-512 with bf16, whose products of many rows in bf16 take AMX: matmul, convolution, attention,
// and weights in few bits.
std::vector<std::string> instruction_sets();

// The name of the one in use: the best that this machine can run, unless `use` chose another.
const char* instruction_set();

// Use the one of that name; false where the machine cannot run it or the build lacks it.
// "amx-emulated" runs on all machines: the best kernels but AMX, with products as for AMX by loops;
// of weights in few bits only where there is AVX-512 with bf16.
bool use(const std::string& name);

}  // namespace torchmlx
