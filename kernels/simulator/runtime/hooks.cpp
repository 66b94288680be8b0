// What the compiled kernel calls: clang's ThreadSanitizer and UBSan instrumentation, with our own
// meaning, and the functions of sim/runtime.h that concern memory.
#include "checks.h"
#include "traffic.h"

namespace sim {

static inline bool own_stack(const char* address) {
  const char* stack =
      stack_of(launch.stacks, launch.current->thread.thread_index_in_threadgroup);
  return address >= stack && address < stack + STACK;
}

static __attribute__((noinline)) void look(
    char* address, size_t bytes, bool read, bool write, bool atomic, Site site, uintptr_t pc) {
  bool inside = true;
  if (launch.check) inside = checker.examine({address, bytes, read, write, atomic, site, pc});
  if (launch.count && inside)
    if (const Region* region = memory.buffer_of(address))
      if (region->counted && address >= region->base &&
          address + bytes <= region->base + region->bytes)
        traffic.note(*region, address, bytes, write, pc ? pc : site.line);
}

static inline void access(void* pointer, size_t bytes, bool write, void* pc) {
  char* address = static_cast<char*>(pointer);
  if (launch.current == nullptr || own_stack(address)) return;
  look(address, bytes, !write, write, false, NOWHERE, launch.in_file(pc) - 1);
}

}  // namespace sim

using namespace sim;

#define PC __builtin_return_address(0)
#define ACCESSES(n)                                                                   \
  void __tsan_read##n(void* p) { access(p, n, false, PC); }                            \
  void __tsan_write##n(void* p) { access(p, n, true, PC); }                            \
  void __tsan_unaligned_read##n(void* p) { access(p, n, false, PC); }                  \
  void __tsan_unaligned_write##n(void* p) { access(p, n, true, PC); }

// Every clang handler's data begins with the place.
struct Place {
  const char* file;
  uint32_t line, column;
};

static void report_undefined(const char* kind, Severity severity, const Place* place, void* pc,
                             const char* message) {
  if (launch.current == nullptr) return;
  // In our own headers the caller's place tells more.
  const bool ours = place->file == nullptr || strstr(place->file, "/simulator/include/");
  const Site site = {ours ? 0 : static_cast<int>(place->line), 0, ours ? "" : place->file};
  report(severity, kind, "", site, ours ? launch.in_file(pc) - 1 : 0, message);
}

extern "C" {

ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(void* p, size_t n) { access(p, n, false, PC); }
void __tsan_write_range(void* p, size_t n) { access(p, n, true, PC); }
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  access(const_cast<void*>(from), n, false, PC);
  access(to, n, true, PC);
  return memmove(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  access(const_cast<void*>(from), n, false, PC);
  access(to, n, true, PC);
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  access(to, n, true, PC);
  return memset(to, value, n);
}

#define UNDEFINED(name, kind, severity, message)                                      \
  void __ubsan_handle_##name(Place* place) {                                           \
    report_undefined(kind, severity, place, PC, message);                              \
  }
UNDEFINED(out_of_bounds, "bounds", ERROR, "index out of the bounds of an array")
UNDEFINED(shift_out_of_bounds, "arithmetic", SPECIFICATION, "shift by more than the width")
UNDEFINED(add_overflow, "arithmetic", SPECIFICATION, "signed integer overflow")
UNDEFINED(sub_overflow, "arithmetic", SPECIFICATION, "signed integer overflow")
UNDEFINED(mul_overflow, "arithmetic", SPECIFICATION, "signed integer overflow")
UNDEFINED(negate_overflow, "arithmetic", SPECIFICATION, "signed integer overflow")
UNDEFINED(divrem_overflow, "arithmetic", SPECIFICATION, "integer division by zero or overflow")
UNDEFINED(float_cast_overflow, "arithmetic", SPECIFICATION,
          "conversion of a value that the integer type cannot hold")
void __ubsan_handle_type_mismatch_v1(Place* place, void* address) {
  const Region* region = memory.in_arena(static_cast<char*>(address))
      ? &memory.arena
      : memory.buffer_of(static_cast<char*>(address));
  if (region == nullptr || launch.current == nullptr) return;
  report_undefined("misaligned", SPECIFICATION, place, PC,
                   format("access to %s '%s' at a byte that its type's alignment forbids",
                          region->threadgroup ? "threadgroup memory" : "buffer",
                          region->name.c_str())
                       .c_str());
}

void sim_atomic(
    const volatile void* pointer, unsigned bytes, bool reads, bool writes, Site site) {
  char* address = static_cast<char*>(const_cast<void*>(pointer));
  if (!(launch.check || launch.count) || launch.current == nullptr) return;
  look(address, bytes, reads, writes, true, site, 0);
}

void sim_fence(int flags) { launch.fenced |= flags & 1; }

void* sim_threadgroup_variable(int* slot, size_t bytes, size_t alignment, const char* name) {
  return memory.variable(slot, bytes, alignment, name);
}

void sim_undefined(const char* what, Site site) {
  report(SPECIFICATION, "undefined-lane", "", site, 0,
         format("%s reads a lane that takes no part: NaN here, undefined on a GPU", what));
}

// Older libgccs lack the rounding to bfloat16.
__bf16 __truncsfbf2(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint16_t high = nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  __bf16 result;
  memcpy(&result, &high, sizeof result);
  return result;
}
__bf16 __truncdfbf2(double x) { return __truncsfbf2(static_cast<float>(x)); }

}  // extern "C"
