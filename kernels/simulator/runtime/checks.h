// Every access of a checked run: bounds, read-only buffers, initialisation, races.
#pragma once
#include "memory.h"

extern "C" char __executable_start, _end;

namespace sim {

// How an access stands to an earlier one. UNFENCED: a barrier lies between, which does not name
// this kind of memory.
enum Order { ORDERED, UNFENCED, SAME_SIMDGROUP, SAME_GROUP, OTHER_GROUP };

// An access under examination, by the current thread.
struct Examined {
  char* address;
  size_t bytes;
  bool read, write, atomic;
  Site site;
  uintptr_t pc;
};

class Checker {
 public:
  // True where the access is inside a buffer or a threadgroup variable.
  bool examine(const Examined& e) {
    Region* region = memory.in_arena(e.address) ? &memory.arena : memory.buffer_of(e.address);
    if (region == nullptr) return report_elsewhere(e);
    if (!in_bounds(*region, e)) return false;
    if (region->read_only) {
      if (e.write)
        tell(ERROR, "read-only", *region, e, "write to an input");
      return true;
    }
    if (region->cells != nullptr) follow(*region, e);
    return true;
  }

  // Elements of an output that nobody wrote.
  void report_unwritten(const Region& region) {
    size_t missing = 0, first = 0;
    for (size_t i = 0; i < region.bytes; i += region.element) {
      if (region.initialised || region.cells[i].initialised) continue;
      if (missing++ == 0) first = i / region.element;
    }
    if (missing)
      report(ERROR, "unwritten", region.name, NOWHERE, 0,
             format("%zu of %zu elements are never written, the first at %zu", missing,
                    region.bytes / region.element, first));
  }

  // Elements of an output that are the very NaN with which private variables begin: whoever stored
  // it has computed with one that nobody set.
  void report_unset(const Region& region) {
    for (size_t i = 0; i < region.bytes; i += region.element) {
      const Cell& cell = region.cells[i];
      if (cell.write.thread == 0 || !is_poison(region, i)) continue;
      blame(cell.write.group, cell.write.thread - 1);
      report(ERROR, "uninitialised", region.name, NOWHERE, cell.write.pc,
             format("the value written to element %zu comes from a variable that nobody has set",
                    i / region.element));
    }
    launch.current = nullptr;
  }

  // Whether an input holds that NaN itself.
  static bool holds_poison(const Region& region) {
    for (size_t i = 0; i < region.bytes; i += region.element)
      if (is_poison(region, i)) return true;
    return false;
  }

 private:
  static bool is_poison(const Region& region, size_t at) {
    for (size_t k = 0; k < region.element; k++)
      if (static_cast<unsigned char>(region.base[at + k]) != POISON) return false;
    return true;
  }

  static std::string name_of(const Region& region, const char* address) {
    if (!region.threadgroup) return region.name;
    const Variable* v = memory.variable_at(address);
    return v ? v->name : "";
  }

  static long offset_of(const Region& region, const char* address) {
    if (!region.threadgroup) return address - region.base;
    const Variable* v = memory.variable_at(address);
    return address - region.base - (v ? v->offset : 0);
  }

  void tell(Severity severity, const char* kind, const Region& region, const Examined& e,
            const std::string& what, uintptr_t other_pc = 0) {
    report(severity, kind, name_of(region, e.address), e.site, e.pc,
           format("%s: %zu bytes at byte %ld of %s '%s'", what.c_str(), e.bytes,
                  offset_of(region, e.address),
                  region.threadgroup ? "threadgroup variable" : "buffer",
                  name_of(region, e.address).c_str()),
           other_pc);
  }

  bool in_bounds(const Region& region, const Examined& e) {
    const char *first = region.base, *last = region.base + region.bytes;
    if (region.threadgroup) {
      const Variable* v = memory.variable_at(e.address);
      first = v ? region.base + v->offset : nullptr;
      last = v ? first + v->bytes : nullptr;
    }
    if (e.address >= first && e.address + e.bytes <= last) return true;
    tell(ERROR, "bounds", region, e,
         format("%s out of bounds (there are %zu bytes)", e.write ? "write" : "read",
                static_cast<size_t>(last - first)));
    return false;
  }

  bool report_elsewhere(const Examined& e) {
    if (launch.in_library(e.address)) return false;  // constants
    if (e.address >= &__executable_start && e.address < &_end) return false;  // sim_thread
    const char* fibers = reinterpret_cast<const char*>(launch.fibers.data());
    if (e.address >= fibers && e.address < fibers + launch.fibers.size() * sizeof(Fiber))
      return false;  // simdgroup_load asks for its lane
    const char* stacks = launch.stacks;
    const size_t all = launch.fibers.size() * (STACK + GUARD);
    const bool stack = e.address >= stacks && e.address < stacks + all;
    report(ERROR, stack ? "private" : "bounds", "", e.site, e.pc,
           stack ? "access to another thread's private memory"
                 : format("%s of %zu bytes at an address outside all buffers",
                          e.write ? "write" : "read", e.bytes));
    return false;
  }

  Order order(const Region& region, const Access& earlier) const {
    const Thread& me = launch.current->thread;
    const bool device = !region.threadgroup;
    if (earlier.group != launch.group) return device ? OTHER_GROUP : ORDERED;
    if (earlier.epoch != launch.epochs[device]) return ORDERED;
    if (earlier.thread == me.thread_index_in_threadgroup + 1) return ORDERED;
    if (earlier.phase != launch.phase) return UNFENCED;
    const unsigned simdgroup = me.simdgroup_index_in_threadgroup;
    if ((earlier.thread - 1u) / LANES != simdgroup) return SAME_GROUP;
    return earlier.simdgroup_epoch != launch.simdgroups[simdgroup].epochs[device]
        ? ORDERED
        : SAME_SIMDGROUP;
  }

  Order order_after_reads(const Region& region, const Cell& cell) const {
    if (cell.readers == NOBODY) return ORDERED;
    if (cell.readers == MANY_GROUPS) return OTHER_GROUP;
    Access last = cell.read;
    const bool now = last.group == launch.group && last.epoch == launch.epochs[!region.threadgroup];
    if (cell.readers == ONE_GROUP && now)
      return last.phase == launch.phase ? SAME_GROUP : UNFENCED;
    // Where a simdgroup has read, so has a neighbour of the last reader.
    const Thread& me = launch.current->thread;
    if (cell.readers == ONE_SIMDGROUP && last.thread == me.thread_index_in_threadgroup + 1)
      last.thread = (me.thread_index_in_threadgroup ^ 1) + 1;
    return order(region, last);
  }

  void follow(Region& region, const Examined& e) {
    const Thread& me = launch.current->thread;
    const bool device = !region.threadgroup;
    const Access now = {launch.group, launch.epochs[device], launch.phase,
                        static_cast<uint32_t>(e.pc),
                        static_cast<uint16_t>(me.thread_index_in_threadgroup + 1),
                        launch.simdgroups[me.simdgroup_index_in_threadgroup].epochs[device]};
    Cell* cells = region.cells + (e.address - region.base);
    bool told = false;
    for (size_t i = 0; i < e.bytes; i++) {
      Cell& cell = cells[i];
      if (!told) told = examine_cell(region, cell, e, now);
      if (e.write) {
        if (e.atomic && cell.atomic_write) note_other_write(cell, now);
        cell.write = now;
        cell.atomic_write = e.atomic;
        cell.initialised = true;
      } else {
        note_read(region, cell, now);
        cell.atomic_read = e.atomic;
      }
    }
  }

  bool examine_cell(const Region& region, const Cell& cell, const Examined& e,
                    const Access& now) {
    const bool written = cell.write.thread != 0 &&
        (!region.threadgroup || cell.write.group == now.group);
    if (e.read && !written && !(region.initialised && !region.threadgroup)) {
      tell(ERROR, "uninitialised", region, e, "read of memory that nobody has written");
      return true;
    }
    if (written && !(e.atomic && cell.atomic_write)) {
      if (tell_race(region, e, order(region, cell.write), cell.write, "write")) return true;
      const Access& other = cell.other_write;
      const bool counts = cell.atomic_write && other.thread != 0 &&
          (!region.threadgroup || other.group == now.group);
      if (counts && tell_race(region, e, order(region, other), other, "write")) return true;
    }
    if (e.write && !(e.atomic && cell.atomic_read))
      return tell_race(region, e, order_after_reads(region, cell), cell.read, "read");
    return false;
  }

  bool tell_race(const Region& region, const Examined& e, Order how, const Access& earlier,
                 const char* what) {
    if (how == ORDERED) return false;
    const bool mild = how == UNFENCED || how == SAME_SIMDGROUP ||
        (how == OTHER_GROUP && launch.fenced);
    const char* where = how == OTHER_GROUP ? "another threadgroup"
        : how == UNFENCED                  ? "this threadgroup, before a barrier without this memory"
        : how == SAME_SIMDGROUP            ? "the same simdgroup"
                                           : "another simdgroup";
    tell(mild ? SPECIFICATION : ERROR, "race", region, e,
         format("%s is not ordered after a %s by thread %u in %s", e.write ? "write" : "read",
                what, earlier.thread - 1u, where),
         earlier.pc);
    return true;
  }

  // A plain access is in a race with any of the threads that wrote before; of those in other
  // threadgroups, which no barrier orders, one is kept.
  static void note_other_write(Cell& cell, const Access& now) {
    const Access& last = cell.write;
    const bool mine = last.group == now.group && last.thread == now.thread;
    const bool keep = cell.other_write.thread != 0 && cell.other_write.group != now.group &&
        last.group == now.group;
    if (!mine && !keep) cell.other_write = last;
  }

  static void note_read(const Region& region, Cell& cell, const Access& now) {
    const Access& last = cell.read;
    if (cell.readers == NOBODY || (region.threadgroup && last.group != now.group)) {
      cell.readers = ONE_THREAD;
    } else if (cell.readers == MANY_GROUPS || last.group != now.group) {
      cell.readers = MANY_GROUPS;
    } else if (last.epoch != now.epoch || last.phase != now.phase) {
      cell.readers = ONE_THREAD;
    } else if ((last.thread - 1u) / LANES != (now.thread - 1u) / LANES) {
      cell.readers = ONE_GROUP;
    } else if (cell.readers < ONE_GROUP) {
      if (last.simdgroup_epoch != now.simdgroup_epoch) {
        cell.readers = ONE_THREAD;
      } else if (last.thread != now.thread) {
        cell.readers = ONE_SIMDGROUP;
      }
    }
    cell.read = now;
  }
};
inline Checker checker;

}  // namespace sim
