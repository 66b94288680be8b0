#include "runtime/isa.h"

#include <atomic>

#include "kernel.h"

namespace torchmlx {
namespace {

namespace runs {

bool portable() { return true; }

#if defined(__x86_64__)
// The compiler's own check also asks the operating system whether it saves the wide registers.
bool avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool avx512() {
  return avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool avx512bf16() { return avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

}  // namespace runs

struct Set {
  const char* name;
  bool (*runs)();
};

#define SET(isa, ...) {#isa, runs::isa},
const Set sets[] = {EACH_SET(SET, )};
#undef SET

constexpr int UNKNOWN = -1;
std::atomic<int> chosen{UNKNOWN};

}  // namespace

int set_in_use() {
  int set = chosen.load(std::memory_order_relaxed);
  if (set == UNKNOWN) {
    set = 0;
    while (!sets[set].runs()) {
      ++set;
    }
    chosen.store(set, std::memory_order_relaxed);
  }
  return set;
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Set& set : sets) {
    if (set.runs()) {
      names.push_back(set.name);
    }
  }
  return names;
}

const char* instruction_set() { return sets[set_in_use()].name; }

bool use(const std::string& name) {
  for (int set = 0; set < SETS; ++set) {
    if (name == sets[set].name && sets[set].runs()) {
      chosen.store(set, std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

}  // namespace torchmlx
