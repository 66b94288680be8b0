// The instruction sets that this build has kernels for, and the one in use.
#pragma once

#include <string>
#include <vector>

#include "op.h"

namespace torchmlx {

// Names of those this machine can run, best first; the last is "portable".
std::vector<std::string> instruction_sets();

// The name in use, and its kernels. The best one unless `use` chose another.
const char* instruction_set();
const Kernels& kernels();

// Use the kernels of that name; false where the machine cannot run them or the build lacks them.
bool use(const std::string& name);

}  // namespace torchmlx
