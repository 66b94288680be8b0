// The launch that runs: its threads, and what is reported about them.
#pragma once
#include <stdint.h>
#include <stdio.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "fiber.h"
#include "sim/runtime.h"

namespace sim {

using Kernel = void (*)(void** buffers);

enum class Wait { RUNNING, EXCHANGE, SIMDGROUP_BARRIER, BARRIER, DONE };

struct Fiber {
  Thread thread;
  Context context;
  Wait wait;
  Site site;
  const char* what;    // the operation it waits at
  unsigned bytes;      // that it brought to an exchange, in its simdgroup's slots
  int flags;           // of the barrier
  bool needs_all;
  int same;            // that the lanes of an exchange have to agree on
  unsigned loads;      // device loads so far, for the traffic counters
};

struct Simdgroup {
  Exchange exchange;
  unsigned char incoming[LANES][SLOT];
  unsigned first, count;  // threads
  uint16_t epochs[2];     // simdgroup barriers so far: [threadgroup memory, device memory]
};

struct Launch {
  bool check = false, count = false;
  uint32_t seed = 0;
  unsigned grid[3], threadgroup[3], groups[3];
  std::vector<Fiber> fibers;
  std::vector<Simdgroup> simdgroups;
  char* stacks = nullptr;
  unsigned threads = 0;      // of the running threadgroup
  uint32_t group = 0;        // the running threadgroup's number, from 1
  uint32_t epochs[2] = {};   // threadgroup barriers so far: [threadgroup memory, device memory]
  uint32_t phase = 0;        // threadgroup barriers of any kind so far
  bool fenced = false;       // atomic_thread_fence orders device memory between threadgroups
  Fiber* current = nullptr;  // no thread runs when null
  const char *library = nullptr, *library_end = nullptr;  // where the compiled kernel is loaded

  bool in_library(const void* address) const { return address >= library && address < library_end; }
  // Where in its file the code at `address` is, as reports name it; 0 for other code.
  uintptr_t in_file(const void* address) const {
    return in_library(address) ? static_cast<const char*>(address) - library : 0;
  }
};
inline Launch launch;

// "error": wrong on any hardware. "specification": outside what Metal promises.
enum Severity { ERROR, SPECIFICATION };

struct Report {
  Severity severity;
  const char* kind;
  std::string variable, message, file;
  uintptr_t pc = 0, other_pc = 0;
  int line = 0;
  unsigned group[3] = {}, thread[3] = {}, simdgroup = 0, lane = 0;
  bool in_thread = false;
  unsigned long count = 0;
};

class Reports {
 public:
  // Remembers the first report of each kind, place and variable, and counts the others.
  void add(Report report) {
    auto key = std::make_tuple(report.severity, std::string(report.kind), report.pc, report.line, report.variable);
    Report& kept = reports_[key];
    if (kept.count++ != 0) return;
    report.count = 1;
    if (const Fiber* fiber = launch.current) {
      const Thread& t = fiber->thread;
      for (int d = 0; d < 3; d++) {
        report.group[d] = t.threadgroup_position_in_grid[d];
        report.thread[d] = t.thread_position_in_threadgroup[d];
      }
      report.simdgroup = t.simdgroup_index_in_threadgroup;
      report.lane = t.thread_index_in_simdgroup;
      report.in_thread = true;
    }
    kept = report;
    order_.push_back(key);
  }

  bool hold(const std::string& kind) const {
    return std::any_of(order_.begin(), order_.end(),
                       [&](const Key& key) { return std::get<1>(key) == kind; });
  }

  // A line each, fields separated by tabs; simulator/execute.py reads them.
  void print(FILE* to) const {
    for (const auto& key : order_) {
      const Report& r = reports_.at(key);
      fprintf(to, "report\t%s\t%s\t%s\t%lu\t%s\t%d\t%lu\t%lu\t%d\t%u,%u,%u\t%u,%u,%u\t%u\t%u\t%s\n",
              r.severity == ERROR ? "error" : "specification", r.kind, r.variable.c_str(),
              r.count, r.file.c_str(), r.line, static_cast<unsigned long>(r.pc),
              static_cast<unsigned long>(r.other_pc), r.in_thread, r.group[0], r.group[1],
              r.group[2], r.thread[0], r.thread[1], r.thread[2], r.simdgroup, r.lane,
              r.message.c_str());
    }
  }

 private:
  using Key = std::tuple<Severity, std::string, uintptr_t, int, std::string>;
  std::map<Key, Report> reports_;
  std::vector<Key> order_;
};
inline Reports reports;

template <typename... A>
std::string format(const char* pattern, A... arguments) {
  char text[400];
  snprintf(text, sizeof text, pattern, arguments...);
  return text;
}

inline void report(Severity severity, const char* kind, const std::string& variable, Site site,
                   uintptr_t pc, const std::string& message, uintptr_t other_pc = 0) {
  Report r;
  r.severity = severity;
  r.kind = kind;
  r.variable = variable;
  r.message = message;
  r.file = site.file;
  r.line = site.line;
  r.pc = pc;
  r.other_pc = other_pc;
  reports.add(r);
}

constexpr Site NOWHERE = {0, 0, ""};

// After the run: what is reported next was done by this thread of the threadgroup number `group`.
void blame(uint32_t group, unsigned thread);

}  // namespace sim
