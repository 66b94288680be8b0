// How a kernel is declared. A kernel NAME has
//   NAME.h         its problem as plain data (pointers, sizes, strides in elements), and KERNEL below;
//   NAME.cpp       what computes it, compiled once for each instruction set; no MLX here, so that a
//                  standalone program can run it under sanitizers;
//   bind/NAME.cpp  its node of MLX's graph and its Python function.
// CMake finds the files: nothing lists kernels.
#pragma once

#include <cstdint>

// X(ISA, ...) for each instruction set of this build, best first. On arm64 "portable" is compiled
// for its baseline, which has NEON and FMA.
#if defined(__x86_64__)
#define EACH_SET(X, ...) \
  X(avx512bf16, __VA_ARGS__) X(avx512, __VA_ARGS__) X(avx2, __VA_ARGS__) X(portable, __VA_ARGS__)
#else
#define EACH_SET(X, ...) X(portable, __VA_ARGS__)
#endif

// In namespace torchmlx: declares ISA::name(const Problem&) for each instruction set ISA, and
// kernels::name(problem), which calls the one in use.
#define KERNEL(name, Problem)                                           \
  EACH_SET(DECLARE_KERNEL, name, Problem)                               \
  namespace kernels {                                                   \
  inline constexpr Kernel<Problem> name{{EACH_SET(LIST_KERNEL, name)}}; \
  }
#define DECLARE_KERNEL(isa, name, Problem) \
  namespace isa {                          \
  void name(const Problem&);               \
  }
#define LIST_KERNEL(isa, name) isa::name,

namespace torchmlx {

#define COUNT_SET(isa, one) +one
constexpr int SETS = EACH_SET(COUNT_SET, 1);
#undef COUNT_SET

// The place in EACH_SET of the instruction set in use.
int set_in_use();

template <class Problem>
struct Kernel {
  void (*functions[SETS])(const Problem&);
  void operator()(const Problem& p) const { functions[set_in_use()](p); }
};

enum class Type { f32, f16, bf16 };

}  // namespace torchmlx
