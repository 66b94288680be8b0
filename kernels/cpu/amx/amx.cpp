#include "amx/amx.h"

#include <cmath>
#include <cstdio>
#include <vector>

#if defined(HAVE_AMX)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace torchmlx {
namespace {

#if defined(HAVE_AMX)
bool has_amx() {
  constexpr unsigned BF16 = 1u << 22, TILE = 1u << 24;
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & BF16) && (d & TILE);
}

// Linux from 5.16 on gives a process tiles when it asks (Documentation/arch/x86/xstate.rst).
bool ask_for_tiles() {
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

MultiplyTiles find() {
  if (!has_amx() || !ask_for_tiles()) {
    return nullptr;
  }
  if (!agree(multiply_by_amx, multiply_by_loops)) {
    std::fprintf(stderr, "torchmlx: AMX computes wrong results here and is not used; AVX-512 is\n");
    return nullptr;
  }
  return multiply_by_amx;
}
#endif

// Pairs of numbers of both signs between 2^-3 and 2.
std::vector<uint32_t> pairs(size_t count, uint32_t seed) {
  std::vector<uint32_t> words(count);
  for (uint32_t& word : words) {
    seed = seed * 1664525 + 1013904223;
    word = (seed & 0x81ff81ff) | 0x3e003e00;
  }
  return words;
}

}  // namespace

MultiplyTiles amx() {
#if defined(HAVE_AMX)
  static const MultiplyTiles found = find();
  return found;
#else
  return nullptr;
#endif
}

bool agree(MultiplyTiles one, MultiplyTiles other) {
  constexpr int64_t ROWS = 2 * TileProduct::ROWS - 3, STEPS = 3 * TileProduct::STEPS, STRIPS = 2;
  constexpr int64_t WIDTH = STRIPS * TileProduct::COLUMNS;
  std::vector<uint32_t> a = pairs(ROWS * STEPS, 1), b = pairs(STEPS * WIDTH, 2);
  auto sums = [&](MultiplyTiles multiply) {
    std::vector<float> result(ROWS * WIDTH);
    for (bool resume : {false, true}) {
      multiply({a.data(), b.data(), result.data(), STEPS, STEPS * TileProduct::COLUMNS, WIDTH, ROWS,
                STEPS, STRIPS, resume});
    }
    return result;
  };
  std::vector<float> x = sums(one), y = sums(other);
  for (size_t i = 0; i < x.size(); ++i) {
    // Sums of a few hundred products of a size of 1 may be rounded in another order.
    if (!(std::abs(x[i] - y[i]) < 1e-3f)) {
      return false;
    }
  }
  return true;
}

}  // namespace torchmlx
