#include "runtime/isa.h"

#include <atomic>

#include "amx/amx.h"
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
bool avx512bf16() {
  return avx512() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi");
}
#endif

}  // namespace runs

struct Set {
  const char* name;
  bool (*runs)();
};

#define SET(isa, ...) {#isa, runs::isa},
const Set sets[] = {EACH_SET(SET, )};
#undef SET

constexpr char AMX[] = "amx", EMULATED[] = "amx-emulated";

constexpr int UNKNOWN = -1;
std::atomic<int> chosen{UNKNOWN};
// Never null, so that a product that runs while another set is chosen can end.
std::atomic<MultiplyTiles> tiles{multiply_by_loops};
std::atomic<bool> tiled{false};

int best() {
  int set = 0;
  while (!sets[set].runs()) {
    ++set;
  }
  return set;
}

// All processors with AMX have AVX-512 with bf16, the first set.
bool amx_runs() { return best() == 0 && amx(); }

}  // namespace

int set_in_use() {
  int set = chosen.load(std::memory_order_acquire);
  if (set == UNKNOWN) {
    use(amx_runs() ? AMX : sets[best()].name);
    set = chosen.load(std::memory_order_acquire);
  }
  return set;
}

bool tiles_in_use() { return tiled.load(std::memory_order_relaxed); }

void multiply_tiles(const TileProduct& p) { tiles.load(std::memory_order_relaxed)(p); }

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names;
  if (amx_runs()) {
    names.push_back(AMX);
  }
  for (const Set& set : sets) {
    if (set.runs()) {
      names.push_back(set.name);
    }
  }
  return names;
}

const char* instruction_set() {
  int set = set_in_use();
  return !tiles_in_use() ? sets[set].name : tiles.load() == multiply_by_loops ? EMULATED : AMX;
}

bool use(const std::string& name) {
  auto choose = [](int set, MultiplyTiles multiply) {
    tiled.store(multiply != nullptr, std::memory_order_relaxed);
    if (multiply) {
      tiles.store(multiply, std::memory_order_relaxed);
    }
    chosen.store(set, std::memory_order_release);
    return true;
  };
  if (name == EMULATED) {
    return choose(best(), multiply_by_loops);
  }
  if (name == AMX) {
    return amx_runs() && choose(0, amx());
  }
  for (int set = 0; set < SETS; ++set) {
    if (name == sets[set].name && sets[set].runs()) {
      return choose(set, nullptr);
    }
  }
  return false;
}

}  // namespace torchmlx
