// Memory traffic: what the threads ask for, and what a cache lets through. Shapes, strides and
// scalars cause none: a GPU has its constants at hand before a thread starts.
//
// An access of a simdgroup is one instruction carried out by its lanes between two simdgroup
// functions or barriers. A lane's loads from directly following addresses by different
// instructions count as one of up to 16 bytes, as a compiler joins them. An access is coalesced
// if it touches no more lines of 128 bytes than its bytes need.
//
// The cache: 4 MiB, fully associative, least recently used, lines of 128 bytes; a line costs the
// bytes that it shares with its buffer. A read that misses costs a line. A write allocates a line
// without reading it; a written line costs again when it leaves. Threadgroups run one after the
// other, in order of issue.
#pragma once
#include <unordered_map>

#include "memory.h"

namespace sim {

constexpr uint64_t LINE = 128;
constexpr uint32_t CACHE_LINES = (4 << 20) / LINE;
constexpr uint32_t NONE = ~0u;
constexpr unsigned WIDEST = 16, LOOK_BACK = 8;

class Cache {
 public:
  uint64_t read = 0, written = 0;  // bytes

  void reset(const std::vector<uint32_t>& cost) {
    cost_ = &cost;
    node_of_.assign(cost.size(), NONE);
  }

  void touch(uint64_t line, bool write) {
    uint32_t node = node_of_[line];
    if (node != NONE) {
      unlink(node);
    } else {
      if (!write) read += (*cost_)[line];
      node = free_node();
      nodes_[node].line = line;
      nodes_[node].dirty = false;
      node_of_[line] = node;
    }
    nodes_[node].dirty |= write;
    link_first(node);
  }

  void flush() {
    for (uint32_t n = first_; n != NONE; n = nodes_[n].next) write_back(n);
  }

 private:
  struct Node {
    uint64_t line;
    uint32_t next, previous;
    bool dirty;
  };

  void write_back(uint32_t n) {
    if (nodes_[n].dirty) written += (*cost_)[nodes_[n].line];
    nodes_[n].dirty = false;
  }

  uint32_t free_node() {
    if (nodes_.size() < CACHE_LINES) {
      nodes_.push_back({});
      return nodes_.size() - 1;
    }
    const uint32_t oldest = last_;
    write_back(oldest);
    node_of_[nodes_[oldest].line] = NONE;
    unlink(oldest);
    return oldest;
  }

  void unlink(uint32_t n) {
    Node& node = nodes_[n];
    (node.previous == NONE ? first_ : nodes_[node.previous].next) = node.next;
    (node.next == NONE ? last_ : nodes_[node.next].previous) = node.previous;
  }

  void link_first(uint32_t n) {
    nodes_[n].previous = NONE;
    nodes_[n].next = first_;
    (first_ == NONE ? last_ : nodes_[first_].previous) = n;
    first_ = n;
  }

  const std::vector<uint32_t>* cost_ = nullptr;
  std::vector<uint32_t> node_of_;
  std::vector<Node> nodes_;
  uint32_t first_ = NONE, last_ = NONE;
};

class Traffic {
 public:
  uint64_t requested[2] = {}, accesses[2] = {}, coalesced[2] = {}, lines[2] = {};
  uint64_t barriers = 0, simdgroup_functions = 0;
  unsigned most_loads = 0, most_phases = 0;
  Cache cache;

  void start() {
    for (Region& region : memory.buffers) {
      region.first_line = costs_.size();
      for (uint64_t at = 0; at < region.bytes; at += LINE)
        costs_.push_back(std::min<uint64_t>(LINE, region.bytes - at));
    }
    cache.reset(costs_);
  }

  void start_group() { phases_.assign(launch.simdgroups.size(), 0); }

  // The current thread's access to a buffer.
  void note(const Region& region, const char* address, size_t bytes, bool write, uintptr_t pc) {
    const uint64_t offset = address - region.base;
    requested[write] += bytes;
    Thread& t = launch.current->thread;
    std::vector<Entry>& log = logs_[t.thread_index_in_simdgroup];
    for (size_t i = log.size(); i > 0 && log.size() - i < LOOK_BACK; i--) {
      Entry& e = log[i - 1];
      if (e.region == &region && e.write == write && e.offset + e.bytes == offset &&
          e.last_pc != pc && e.bytes + bytes <= WIDEST) {
        e.bytes += bytes;
        e.last_pc = pc;
        return;
      }
    }
    log.push_back({&region, offset, pc, pc, static_cast<uint32_t>(bytes), write});
    if (!write) launch.current->loads++;
  }

  // Takes in what the lanes of a simdgroup did since the last call.
  void settle(unsigned simdgroup) {
    collect();
    bool loaded = false;
    for (const Joint& joint : joints_) {
      const bool write = joint.parts.front().write;
      loaded |= !write;
      settle(joint, write);
    }
    joints_.clear();
    for (auto& log : logs_) log.clear();
    most_phases = std::max(most_phases, phases_[simdgroup] += loaded);
  }

 private:
  struct Entry {
    const Region* region;
    uint64_t offset;
    uintptr_t pc, last_pc;
    uint32_t bytes;
    bool write;
  };
  struct Joint {  // one instruction's accesses, of all lanes
    std::vector<Entry> parts;
  };

  // Groups the lanes' entries by instruction and by how often the lane had come to it.
  void collect() {
    std::unordered_map<uint64_t, size_t> places;
    std::unordered_map<uintptr_t, uint32_t> times;
    for (auto& log : logs_) {
      times.clear();
      for (size_t i = 0; i < log.size(); i++) {
        const Entry& e = log[i];
        // Converged lanes have equal logs, which need no look-up.
        if (i < joints_.size() && joints_[i].parts.front().pc == e.pc && times.empty() &&
            places.empty()) {
          joints_[i].parts.push_back(e);
          continue;
        }
        if (&log == &logs_[0]) {
          joints_.push_back({{e}});
          continue;
        }
        if (places.empty()) index(places);
        if (times.empty())
          for (size_t j = 0; j < i; j++) times[log[j].pc]++;
        const uint64_t key = e.pc << 24 ^ times[e.pc]++;
        auto [at, fresh] = places.try_emplace(key, joints_.size());
        if (fresh) joints_.push_back({});
        joints_[at->second].parts.push_back(e);
      }
    }
  }

  void index(std::unordered_map<uint64_t, size_t>& places) {
    std::unordered_map<uintptr_t, uint32_t> times;
    for (size_t i = 0; i < joints_.size(); i++) {
      const uintptr_t pc = joints_[i].parts.front().pc;
      places[pc << 24 ^ times[pc]++] = i;
    }
  }

  void settle(const Joint& joint, bool write) {
    touched_.clear();
    uint64_t bytes = 0;
    for (const Entry& e : joint.parts) {
      bytes += e.bytes;
      const uint64_t first = e.region->first_line + e.offset / LINE;
      const uint64_t last = e.region->first_line + (e.offset + e.bytes - 1) / LINE;
      for (uint64_t line = first; line <= last; line++) touched_.push_back(line);
    }
    std::sort(touched_.begin(), touched_.end());
    touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
    for (uint64_t line : touched_) cache.touch(line, write);
    accesses[write]++;
    lines[write] += touched_.size();
    coalesced[write] += touched_.size() <= (bytes + LINE - 1) / LINE;
  }

  std::vector<uint32_t> costs_;
  std::vector<Entry> logs_[LANES];
  std::vector<Joint> joints_;
  std::vector<uint64_t> touched_;
  std::vector<unsigned> phases_;
};
inline Traffic traffic;

}  // namespace sim
