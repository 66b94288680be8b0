// A fiber a thread: its own stack, switched by hand.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
// SIM_UCONTEXT: take the way of other machines here too, to test it.
#if defined(__x86_64__) && !defined(SIM_UCONTEXT)
#define SIM_SWITCH_BY_HAND
#else
#include <ucontext.h>
#endif

namespace sim {

constexpr size_t STACK = 256 << 10;  // address space; a fiber touches what it needs
constexpr size_t GUARD = 4096;

#ifdef SIM_SWITCH_BY_HAND
// The callee-saved registers go onto the stack that is left.
extern "C" void sim_switch(void** save, void* to);
asm(R"(
.text
sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

struct Context {
  void* top = nullptr;

  void start(char* stack, void (*entry)()) {
    void** top_of_stack = reinterpret_cast<void**>(stack + STACK - 64);
    *--top_of_stack = nullptr;  // entry sees the alignment of a called function
    *--top_of_stack = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; i++) *--top_of_stack = nullptr;
    top = top_of_stack;
  }
  void switch_to(Context& other) { sim_switch(&top, other.top); }
};
#else
// Elsewhere the system's contexts, which make a system call at each switch.
struct Context {
  ucontext_t context;

  void start(char* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  void switch_to(Context& other) { swapcontext(&context, &other.context); }
};
#endif

// Memory for `count` stacks, each above a page that faults.
inline char* map_stacks(size_t count) {
  void* memory = mmap(nullptr, count * (STACK + GUARD), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  char* stacks = static_cast<char*>(memory);
  for (size_t i = 0; i < count; i++) mprotect(stacks + i * (STACK + GUARD), GUARD, PROT_NONE);
  return stacks;
}
inline char* stack_of(char* stacks, size_t i) { return stacks + i * (STACK + GUARD) + GUARD; }

}  // namespace sim
