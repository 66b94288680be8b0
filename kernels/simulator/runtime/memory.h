// Buffers and threadgroup variables: where they are, who touched them, and what that breaks.
#pragma once
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "state.h"

namespace sim {

constexpr unsigned char POISON = 0xFF;  // NaN in every floating type
constexpr size_t PAGE = 4096;
constexpr size_t RED_ZONE = 64 << 10;   // around a buffer, so that a wrong write hits nothing
constexpr size_t SMALLEST_SLOT = 1ul << 36;  // address space for a buffer: 2^32 floats too far
constexpr size_t THREADGROUP_LIMIT = 32768;
constexpr size_t THREADGROUP_ARENA = 1 << 20;
constexpr size_t THREADGROUP_GAP = 256;  // between variables

struct Access {
  uint32_t group, epoch, phase, pc;
  uint16_t thread, simdgroup_epoch;  // thread counts from 1; 0 is nobody
};

enum Readers : uint8_t { NOBODY, ONE_THREAD, ONE_SIMDGROUP, ONE_GROUP, MANY_GROUPS };

// What is known of a byte.
struct Cell {
  Access write, read;
  Access other_write;  // atomic, of another thread than the last one
  Readers readers;
  bool atomic_write, atomic_read, initialised;
};

struct Region {
  char* base = nullptr;
  size_t bytes = 0;
  std::string name;
  unsigned element = 1;
  bool read_only = false, initialised = false, threadgroup = false, counted = true;
  Cell* cells = nullptr;
  uint64_t first_line = 0;  // of the cache model
};

struct Variable {
  size_t offset, bytes;
  std::string name;
};

inline void* reserve(size_t bytes, int protection) {
  void* memory = mmap(nullptr, std::max(bytes, PAGE), protection,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    fprintf(stderr, "cannot map %zu bytes\n", bytes);
    exit(3);
  }
  return memory;
}

class Memory {
 public:
  std::vector<Region> buffers;
  std::vector<Variable> variables;
  Region arena;  // of all threadgroup variables
  size_t threadgroup_bytes = 0;

  // Every buffer lies in a slot of equal size, so that an address tells its buffer even when it
  // is far out of bounds.
  void lay_out(size_t count, size_t largest) {
    slot_ = SMALLEST_SLOT;
    while (slot_ < 4 * (largest + 2 * RED_ZONE)) slot_ *= 2;
    first_ = static_cast<char*>(reserve(slot_ * count, PROT_NONE));
    end_ = first_ + slot_ * count;
    arena.base = static_cast<char*>(reserve(THREADGROUP_ARENA, PROT_READ | PROT_WRITE));
    arena.bytes = THREADGROUP_ARENA;
    arena.threadgroup = true;
    if (launch.check)
      arena.cells = static_cast<Cell*>(
          reserve(THREADGROUP_ARENA * sizeof(Cell), PROT_READ | PROT_WRITE));
  }

  // Checked buffers have red zones; others touch an unmapped page with their end or, for odd
  // seeds, with their start. Their starts keep an alignment of 16 bytes.
  Region& add_buffer(const std::string& name, size_t bytes, unsigned element, bool read_only,
                     bool initialised) {
    Region region;
    char* slot = first_ + slot_ * buffers.size();
    char* middle = slot + slot_ / 4;
    const size_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
    if (launch.check || launch.count) {
      mprotect(middle - RED_ZONE, pages + 2 * RED_ZONE, PROT_READ | PROT_WRITE);
      region.base = middle;
    } else {
      mprotect(middle, pages, PROT_READ | PROT_WRITE);
      region.base = launch.seed % 2 ? middle : middle + pages - (bytes + 15) / 16 * 16;
    }
    region.bytes = bytes;
    region.name = name;
    region.element = element;
    region.read_only = read_only;
    region.initialised = initialised;
    if (launch.check && !read_only)
      region.cells =
          static_cast<Cell*>(reserve(bytes * sizeof(Cell), PROT_READ | PROT_WRITE));
    buffers.push_back(region);
    return buffers.back();
  }

  // The buffer in whose slot `address` lies, or null.
  Region* buffer_of(const char* address) {
    if (address < first_ || address >= end_) return nullptr;
    const size_t i = (address - first_) / slot_;
    return i < buffers.size() ? &buffers[i] : nullptr;
  }
  bool in_arena(const char* a) const {
    return a >= arena.base && a < arena.base + THREADGROUP_ARENA;
  }

  void* variable(int* slot, size_t bytes, size_t alignment, const char* name) {
    if (*slot < 0) *slot = declare(bytes, alignment, name);
    return arena.base + variables[*slot].offset;
  }

  // What a threadgroup finds in its memory.
  void poison_variables() {
    for (const Variable& v : variables) memset(arena.base + v.offset, POISON, v.bytes);
  }

  // The variable that holds `address` or lies closest to it.
  const Variable* variable_at(const char* address) const {
    const Variable* nearest = nullptr;
    size_t distance = THREADGROUP_ARENA;
    for (const Variable& v : variables) {
      const char* first = arena.base + v.offset;
      const size_t away = address < first ? first - address
          : address < first + v.bytes     ? 0
                                          : address - (first + v.bytes) + 1;
      if (away < distance) nearest = &v, distance = away;
    }
    return nearest;
  }

 private:
  int declare(size_t bytes, size_t alignment, const char* name) {
    size_t offset = variables.empty() ? 0 : variables.back().offset + variables.back().bytes;
    alignment = std::max<size_t>(alignment, 16);
    offset = (offset + THREADGROUP_GAP + alignment - 1) / alignment * alignment;
    if (offset + bytes + THREADGROUP_GAP > THREADGROUP_ARENA) {
      fprintf(stderr, "threadgroup variable %s: %zu bytes\n", name, bytes);
      exit(3);
    }
    const bool fitted = threadgroup_bytes <= THREADGROUP_LIMIT;
    threadgroup_bytes += bytes;
    if (fitted && threadgroup_bytes > THREADGROUP_LIMIT)
      report(ERROR, "threadgroup-memory", name, NOWHERE, 0,
             format("%zu bytes of threadgroup memory, more than 32768", threadgroup_bytes));
    memset(arena.base + offset, POISON, bytes);
    variables.push_back({offset, bytes, name});
    return variables.size() - 1;
  }

  char *first_ = nullptr, *end_ = nullptr;
  size_t slot_ = 0;
};
inline Memory memory;

}  // namespace sim
