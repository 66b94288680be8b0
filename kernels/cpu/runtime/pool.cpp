#include "runtime/pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace torchmlx {
namespace {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How long a thread watches for the next loop, or for the last piece of this one, before it sleeps;
// by the clock, as a pause takes 40 cycles on one processor and 140 on another. On an AMD EPYC
// (Zen 4, virtual, 2 threads, 2026-12-02) a loop begins on both threads after 0.4 us (p99 1 to 3) if
// they watch, after 12 to 30 us if one sleeps, 7 of which are the caller's own. A token of
// SmolLM2-135M, whose loops are rarely further apart, takes 19 to 24 ms with 100 us, 29 with 25.
constexpr std::chrono::microseconds WATCH{100};

// Returns as soon as `ready` holds, or after that time. Gives way to others that want this core: one
// may be the thread that is waited for.
template <class F>
void watch(const F& ready) {
  constexpr int PAUSES = 16;
  auto end = std::chrono::steady_clock::now() + WATCH;
  do {
    for (int i = 0; i < PAUSES; ++i) {
      if (ready()) {
        return;
      }
      pause();
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
}

struct Loop {
  int64_t count, grain;
  Body body;
  const void* context;
  std::atomic<int64_t> next{0};
  std::atomic<bool> failed{false};
  std::exception_ptr error;
};

void take_pieces(Loop& loop) {
  for (;;) {
    int64_t begin = loop.next.fetch_add(loop.grain, std::memory_order_relaxed);
    if (begin >= loop.count) {
      return;
    }
    try {
      loop.body(loop.context, begin, std::min(begin + loop.grain, loop.count));
    } catch (...) {
      if (!loop.failed.exchange(true)) {
        loop.error = std::current_exception();
      }
      loop.next.store(loop.count, std::memory_order_relaxed);
    }
  }
}

class Pool {
 public:
  explicit Pool(int size) : size_(size) {}

  int size() const { return size_.load(std::memory_order_relaxed); }

  // False when another loop has the pool.
  bool try_enter() { return !busy_.exchange(true, std::memory_order_acquire); }
  void leave() { busy_.store(false, std::memory_order_release); }

  // Leaves it also when there is no memory for a worker: entered for ever, it would serve nobody.
  struct Leaver {
    Pool& pool;
    ~Leaver() { pool.leave(); }
  };

  void run(Loop& loop) {
    start_workers();
    loop_.store(&loop);
    turn_.fetch_add(1);
    int64_t pieces = (loop.count + loop.grain - 1) / loop.grain;
    if (pieces > static_cast<int64_t>(workers_.size())) {
      turn_.notify_all();
    } else {
      for (int64_t i = 1; i < pieces; ++i) {
        turn_.notify_one();
      }
    }
    take_pieces(loop);
    // The loop lives on this stack: nobody may enter it any more, and all must have left.
    loop_.store(nullptr);
    watch([&] { return working_.load() == 0; });
    while (int working = working_.load()) {
      working_.wait(working);
    }
  }

  void resize(int size) {
    while (!try_enter()) {
      std::this_thread::yield();
    }
    Leaver leaver{*this};
    stop_workers();
    size_.store(size, std::memory_order_relaxed);
  }

 private:
  // Does with fewer where the system gives no more.
  void start_workers() {
    try {
      while (static_cast<int>(workers_.size()) < size() - 1) {
        workers_.emplace_back([this, turn = turn_.load()] { work(turn); });
      }
    } catch (const std::system_error&) {
    }
  }

  void stop_workers() {
    stopping_ = true;
    turn_.fetch_add(1);
    turn_.notify_all();
    for (std::thread& worker : workers_) {
      worker.join();
    }
    workers_.clear();
    stopping_ = false;
  }

  // `seen` is the turn that began last when this worker was made.
  void work(uint32_t seen) {
    for (;;) {
      watch([&] { return turn_.load() != seen; });
      turn_.wait(seen);
      seen = turn_.load();
      if (stopping_) {
        return;
      }
      // Of this order and the caller's, which takes the loop away before it looks who works, either
      // this worker finds no loop or the caller waits for it. A loop may belong to a later turn.
      working_.fetch_add(1);
      if (Loop* loop = loop_.load()) {
        take_pieces(*loop);
      }
      if (working_.fetch_sub(1) == 1) {
        working_.notify_one();
      }
    }
  }

  std::atomic<int> size_;
  std::atomic<bool> busy_{false};
  std::vector<std::thread> workers_;
  // Workers sleep on the turn, the caller on the number of those who work; both sleep and wake by
  // a system call only after watching in vain.
  std::atomic<uint32_t> turn_{0};
  std::atomic<int> working_{0};
  std::atomic<Loop*> loop_{nullptr};
  std::atomic<bool> stopping_{false};
};

std::atomic<Pool*> pool_pointer{nullptr};

// A child of fork has the memory of the pool but none of its threads: give it a new pool. The old
// one is left alone, as its locks may have been held at that moment.
void renew_after_fork() { pool_pointer.store(new Pool(pool_pointer.load()->size())); }

// Never destroyed: a worker may still sleep on its lock when the process exits.
Pool& pool() {
  static const bool made = [] {
    pool_pointer.store(new Pool(1));
    pthread_atfork(nullptr, nullptr, renew_after_fork);
    return true;
  }();
  static_cast<void>(made);
  return *pool_pointer.load(std::memory_order_relaxed);
}

struct Memory {
  static constexpr int SLOTS = 8;
  void* data[SLOTS] = {};
  size_t bytes[SLOTS] = {};
  ~Memory() {
    for (void* each : data) {
      std::free(each);
    }
  }
};

}  // namespace

int threads() { return pool().size(); }

void set_threads(int count) { pool().resize(std::max(count, 1)); }

void run(int64_t count, int64_t grain, Body body, const void* context) {
  if (count <= 0) {
    return;
  }
  Pool& workers = pool();
  if (count <= grain || workers.size() == 1 || !workers.try_enter()) {
    body(context, 0, count);
    return;
  }
  Loop loop{count, grain, body, context};
  {
    Pool::Leaver leaver{workers};
    workers.run(loop);
  }
  if (loop.error) {
    std::rethrow_exception(loop.error);
  }
}

void* scratch(int slot, size_t bytes) {
  thread_local Memory memory;
  if (memory.bytes[slot] < bytes) {
    std::free(memory.data[slot]);
    memory.bytes[slot] = 0;
    size_t whole = (bytes + 63) / 64 * 64;
    memory.data[slot] = std::aligned_alloc(64, whole);
    if (!memory.data[slot]) {
      throw std::bad_alloc();
    }
    memory.bytes[slot] = whole;
  }
  return memory.data[slot];
}

}  // namespace torchmlx
