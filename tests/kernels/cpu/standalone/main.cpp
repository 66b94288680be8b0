// Kernels and thread pool against plain loops in double, without Python and MLX: for sanitizers, and
// for machines that are only emulated. Prints what differs; exits with the number of differences.
#include <atomic>
#include <stdexcept>
#include <thread>

#include "amx/amx.h"
#include "check.h"
#include "runtime/copy.h"

namespace {

void check_copy() {
  std::vector<uint16_t> x(60), out(60);
  for (int i = 0; i < 60; ++i) {
    x[i] = static_cast<uint16_t>(i);
  }
  copy({x.data(), out.data(), 2, {5, 3, 4}, {1, 5, 15}});
  bool good = true;
  for (int i = 0; i < 60; ++i) {
    good = good && out[i] == i / 12 + i / 4 % 3 * 5 + i % 4 * 15;
  }
  expect(good, "copy");
}

// Loops cover each index once, also from two threads, inside one another, and while the pool
// changes its size; an exception comes back.
void check_pool() {
  auto covers = [] {
    std::vector<std::atomic<int>> seen(1000);
    parallel(1000, 7, [&](int64_t begin, int64_t end) {
      parallel(end - begin, 2, [&](int64_t first, int64_t last) {
        for (int64_t i = begin + first; i < begin + last; ++i) {
          seen[i].fetch_add(1);
        }
      });
    });
    for (auto& each : seen) {
      if (each.load() != 1) {
        return false;
      }
    }
    return true;
  };
  std::atomic<bool> good{true}, stop{false};
  std::thread other([&] {
    while (!stop) {
      good = good && covers();
    }
  });
  for (int round = 0; round < 50; ++round) {
    set_threads(1 + round % 4);
    good = good && covers();
  }
  stop = true;
  other.join();
  expect(good, "parallel");
  set_threads(3);
  bool thrown = false;
  try {
    parallel(100, 1, [](int64_t begin, int64_t) {
      if (begin == 50) {
        throw std::runtime_error("expected");
      }
    });
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  expect(thrown, "an exception in a loop");
}

// What decides whether AMX is used tells one wrong sum from none.
void check_agreement() {
  MultiplyTiles wrong = [](const TileProduct& p) {
    multiply_by_loops(p);
    p.sums[(p.rows - 1) * p.row + TileProduct::COLUMNS] += 0.125f;
  };
  expect(agree(multiply_by_loops, multiply_by_loops), "tiles agree with themselves");
  expect(!agree(wrong, multiply_by_loops), "a wrong tile is found");
}

}  // namespace

int main() {
  check_pool();
  check_copy();
  check_agreement();
  std::vector<std::string> sets = instruction_sets();
  sets.push_back("amx-emulated");
  for (const std::string& set : sets) {
    use(set);
    for (int count : {1, 3}) {
      set_threads(count);
      check_dense();
      check_few_bits();
      check_images();
      check_sequences();
    }
  }
  set_threads(1);
  std::printf("%d differences on", faults);
  for (const std::string& set : sets) {
    std::printf(" %s", set.c_str());
  }
  std::printf("\n");
  return faults ? 1 : 0;
}
