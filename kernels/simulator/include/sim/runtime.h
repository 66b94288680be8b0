// What a compiled kernel and the runtime know of each other.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace sim {

constexpr unsigned LANES = 32;
constexpr unsigned SLOT = 64;  // bytes that a lane may exchange at once

// A place in the kernel's text.
struct Site {
  int line;
  int column;
  const char* file;
};

// The thread attributes, by their names in Metal.
struct Thread {
  unsigned thread_position_in_grid[3];
  unsigned thread_position_in_threadgroup[3];
  unsigned threadgroup_position_in_grid[3];
  unsigned threadgroups_per_grid[3];
  unsigned threads_per_grid[3];
  unsigned threads_per_threadgroup[3];
  unsigned dispatch_threads_per_threadgroup[3];
  unsigned grid_origin[3];
  unsigned grid_size[3];
  unsigned thread_index_in_threadgroup;
  unsigned thread_index_in_simdgroup;
  unsigned thread_index_in_quadgroup;
  unsigned simdgroup_index_in_threadgroup;
  unsigned quadgroup_index_in_threadgroup;
  unsigned simdgroups_per_threadgroup;
  unsigned quadgroups_per_threadgroup;
  unsigned dispatch_simdgroups_per_threadgroup;
  unsigned dispatch_quadgroups_per_threadgroup;
  unsigned threads_per_simdgroup;
  unsigned thread_execution_width;
};

// What the lanes of a simdgroup brought to one operation. `result` serves the lanes that come
// after the first one, where all receive the same.
struct Exchange {
  alignas(64) unsigned char slots[LANES][SLOT];
  alignas(64) unsigned char result[SLOT];
  unsigned mask;
  bool ready;
};

enum Participation { ANY_LANES, ALL_LANES };

extern "C" {
extern Thread* sim_thread;

void sim_barrier(bool simdgroup, int flags, Site site);
// Lanes whose `same` differ have done what Metal leaves undefined.
Exchange* sim_exchange(
    const void* mine, unsigned bytes, Site site, const char* what, Participation lanes,
    int same = 0);
void* sim_threadgroup_variable(int* slot, size_t bytes, size_t alignment, const char* name);
void sim_atomic(
    const volatile void* address, unsigned bytes, bool reads, bool writes, Site site);
void sim_fence(int flags);
void sim_undefined(const char* what, Site site);
}

// A threadgroup variable; ID keeps equally typed ones apart.
template <typename T, int ID>
inline __attribute__((always_inline)) T& threadgroup_variable(const char* name) {
  static int slot = -1;
  return *static_cast<T*>(sim_threadgroup_variable(&slot, sizeof(T), alignof(T), name));
}

}  // namespace sim
