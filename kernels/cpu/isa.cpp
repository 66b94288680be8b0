#include "isa.h"

#include <atomic>

namespace torchmlx {

#define DECLARE(isa)          \
  namespace isa {             \
  extern const Kernels table; \
  }
DECLARE(portable)
#if defined(__x86_64__)
DECLARE(avx2)
DECLARE(avx512)
DECLARE(avx512bf16)
#endif
#undef DECLARE

namespace {

struct Set {
  const char* name;
  const Kernels* table;
  bool (*runs)();
};

bool always() { return true; }

#if defined(__x86_64__)
// The compiler's own check also asks the operating system whether it saves the wide registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_avx512bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

// Best first. On arm64 "portable" is compiled for its baseline, which has NEON and FMA.
const Set sets[] = {
#if defined(__x86_64__)
    {"avx512bf16", &avx512bf16::table, has_avx512bf16},
    {"avx512", &avx512::table, has_avx512},
    {"avx2", &avx2::table, has_avx2},
#endif
    {"portable", &portable::table, always},
};

std::atomic<const Set*> chosen{nullptr};

const Set& current() {
  const Set* set = chosen.load(std::memory_order_acquire);
  if (!set) {
    set = sets;
    while (!set->runs()) {
      ++set;
    }
    chosen.store(set, std::memory_order_release);
  }
  return *set;
}

}  // namespace

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  for (const Set& set : sets) {
    if (set.runs()) {
      names.push_back(set.name);
    }
  }
  return names;
}

const char* instruction_set() { return current().name; }

const Kernels& kernels() { return *current().table; }

bool use(const std::string& name) {
  for (const Set& set : sets) {
    if (name == set.name && set.runs()) {
      chosen.store(&set, std::memory_order_release);
      return true;
    }
  }
  return false;
}

}  // namespace torchmlx
