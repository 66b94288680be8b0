// Runs a launch: threadgroups one after the other, their threads as fibers.
//
// Threads run until they wait for others: the lanes of a simdgroup at its functions and barriers,
// all threads at a threadgroup's barrier. Seed 0 takes threadgroups, simdgroups and lanes in
// order; others permute them.
#include "checks.h"
#include "traffic.h"

extern "C" {
sim::Thread* sim_thread = nullptr;
}

namespace sim {

static Context scheduler;
static Kernel kernel;
static void** kernel_buffers;
static unsigned lane_order[LANES];

// Leaves the current thread, which waits or is done, for the scheduler.
static void leave(Fiber& fiber) { fiber.context.switch_to(scheduler); }

static void run_thread() {
  kernel(kernel_buffers);
  launch.current->wait = Wait::DONE;
  leave(*launch.current);
  __builtin_unreachable();
}

static void resume(Fiber& fiber) {
  launch.current = &fiber;
  sim_thread = &fiber.thread;
  scheduler.switch_to(fiber.context);
  launch.current = nullptr;
}

static void wait_at(Wait wait, Site site, const char* what) {
  Fiber& fiber = *launch.current;
  fiber.wait = wait;
  fiber.site = site;
  fiber.what = what;
  leave(fiber);
}

static Fiber& lane_of(Simdgroup& group, unsigned lane) {
  return launch.fibers[group.first + lane];
}

static bool at_operation(const Fiber& f) {
  return f.wait == Wait::EXCHANGE || f.wait == Wait::SIMDGROUP_BARRIER;
}

static bool before(Site a, Site b) {
  return a.line != b.line ? a.line < b.line : a.column < b.column;
}

static bool same_operation(const Fiber& a, const Fiber& b) {
  return a.site.line == b.site.line && a.site.column == b.site.column && a.wait == b.wait;
}

// Of the lanes that wait, those at the earliest operation in the text.
static unsigned lanes_at_earliest(Simdgroup& group, const Fiber*& leader) {
  leader = nullptr;
  for (unsigned i = 0; i < group.count; i++) {
    const Fiber& f = lane_of(group, i);
    if (at_operation(f) && (leader == nullptr || before(f.site, leader->site))) leader = &f;
  }
  unsigned mask = 0;
  for (unsigned i = 0; leader != nullptr && i < group.count; i++) {
    const Fiber& f = lane_of(group, i);
    if (at_operation(f) && same_operation(f, *leader)) mask |= 1u << i;
  }
  return mask;
}

static void report_divergence(Simdgroup& group, Fiber& leader, unsigned mask) {
  const unsigned present = __builtin_popcount(mask);
  if (present == group.count && !(leader.needs_all && group.count < LANES)) return;
  unsigned done = 0;
  for (unsigned i = 0; i < group.count; i++) done += lane_of(group, i).wait == Wait::DONE;
  launch.current = &leader;
  const bool wrong = leader.needs_all || leader.wait == Wait::SIMDGROUP_BARRIER;
  report(wrong ? ERROR : SPECIFICATION, "divergence", "", leader.site, 0,
         format("%s is reached by %u of %u lanes (mask 0x%08x); %u have returned", leader.what,
                present, leader.needs_all ? LANES : group.count, mask, done));
  launch.current = nullptr;
}

static void report_disagreement(Simdgroup& group, Fiber& leader, unsigned mask) {
  for (unsigned i = 0; i < group.count; i++) {
    Fiber& f = lane_of(group, i);
    if (!(mask >> i & 1) || f.same == leader.same) continue;
    launch.current = &f;
    report(SPECIFICATION, "undefined-lane", "", f.site, 0,
           format("lanes of one %s ask for %d and for %d, and must agree", f.what, leader.same,
                  f.same));
    launch.current = nullptr;
    return;
  }
}

static void complete(Simdgroup& group, Fiber& leader, unsigned mask) {
  report_divergence(group, leader, mask);
  if (launch.check && leader.wait == Wait::EXCHANGE) report_disagreement(group, leader, mask);
  traffic.simdgroup_functions++;
  if (leader.wait == Wait::SIMDGROUP_BARRIER) {
    group.epochs[0] += (leader.flags & 2) != 0;
    group.epochs[1] += (leader.flags & 1) != 0;
  } else {
    for (unsigned i = 0; i < group.count; i++)
      if (mask >> i & 1)
        memcpy(group.exchange.slots[i], group.incoming[i], lane_of(group, i).bytes);
    group.exchange.mask = mask;
    group.exchange.ready = false;
  }
  for (unsigned i = 0; i < group.count; i++)
    if (mask >> i & 1) lane_of(group, i).wait = Wait::RUNNING;
}

// Until every lane has returned or waits at a threadgroup's barrier.
static void run_simdgroup(unsigned index) {
  Simdgroup& group = launch.simdgroups[index];
  for (;;) {
    for (unsigned k = 0; k < LANES; k++) {
      const unsigned lane = lane_order[k];
      if (lane < group.count && lane_of(group, lane).wait == Wait::RUNNING)
        resume(lane_of(group, lane));
    }
    if (launch.count) traffic.settle(index);
    const Fiber* leader;
    const unsigned mask = lanes_at_earliest(group, leader);
    if (leader == nullptr) return;
    complete(group, const_cast<Fiber&>(*leader), mask);
  }
}

// What is wrong with the threads at a barrier. A GPU counts simdgroups, of which any lane may
// arrive, and leaves out those that have returned: MLX's gemv relies on it. It cannot tell one
// barrier from another, though.
enum Barrier { SOUND, SOME_RETURNED, OTHERS_ELSEWHERE };

static Barrier judge_barrier(const Fiber& leader, unsigned& present) {
  Barrier worst = SOUND;
  present = 0;
  for (unsigned i = 0; i < launch.threads; i++) {
    const Fiber& f = launch.fibers[i];
    if (f.wait == Wait::BARRIER && same_operation(f, leader))
      present++;
    else
      worst = std::max(worst, f.wait == Wait::DONE ? SOME_RETURNED : OTHERS_ELSEWHERE);
  }
  return worst;
}

// Lets the threads at the barrier go on; false when all have returned.
static bool release_barrier() {
  Fiber* leader = nullptr;
  int flags = ~0;
  unsigned done = 0;
  for (unsigned i = 0; i < launch.threads; i++) {
    Fiber& f = launch.fibers[i];
    if (f.wait == Wait::DONE) {
      done++;
      continue;
    }
    if (leader == nullptr) leader = &f;
    flags &= f.flags;
  }
  if (leader == nullptr) return false;
  unsigned present;
  if (const Barrier fault = judge_barrier(*leader, present)) {
    launch.current = leader;
    report(fault == OTHERS_ELSEWHERE ? ERROR : SPECIFICATION, "barrier", "", leader->site, 0,
           format("threadgroup_barrier is reached by %u of %u threads; %u have returned, %u "
                  "wait at another one",
                  present, launch.threads, done, launch.threads - present - done));
    launch.current = nullptr;
  }
  traffic.barriers++;
  launch.phase++;
  launch.epochs[0] += (flags & 2) != 0;
  launch.epochs[1] += (flags & 1) != 0;
  for (unsigned i = 0; i < launch.threads; i++)
    if (launch.fibers[i].wait == Wait::BARRIER) launch.fibers[i].wait = Wait::RUNNING;
  return true;
}

static void prepare_thread(unsigned i, const unsigned position[3], const unsigned size[3]) {
  Fiber& fiber = launch.fibers[i];
  Thread& t = fiber.thread;
  const unsigned local[3] = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
  for (int d = 0; d < 3; d++) {
    t.thread_position_in_threadgroup[d] = local[d];
    t.threadgroup_position_in_grid[d] = position[d];
    t.thread_position_in_grid[d] = position[d] * launch.threadgroup[d] + local[d];
    t.threads_per_threadgroup[d] = size[d];
  }
  t.simdgroups_per_threadgroup = (launch.threads + LANES - 1) / LANES;
  t.quadgroups_per_threadgroup = (launch.threads + 3) / 4;
  fiber.wait = Wait::RUNNING;
  fiber.loads = 0;
  fiber.context.start(stack_of(launch.stacks, i), run_thread);
}

// Where a threadgroup is and how large: at the edge it may be smaller than the others.
static void locate(uint64_t number, unsigned position[3], unsigned size[3]) {
  const unsigned* groups = launch.groups;
  position[0] = number % groups[0];
  position[1] = number / groups[0] % groups[1];
  position[2] = number / groups[0] / groups[1];
  for (int d = 0; d < 3; d++)
    size[d] = std::min(launch.threadgroup[d],
                       launch.grid[d] - position[d] * launch.threadgroup[d]);
}

void blame(uint32_t group, unsigned thread) {
  unsigned position[3], size[3];
  locate(group - 1, position, size);
  prepare_thread(thread, position, size);
  launch.current = &launch.fibers[thread];
}

static void prepare_group(uint64_t number) {
  unsigned position[3], size[3];
  locate(number, position, size);
  launch.threads = size[0] * size[1] * size[2];
  launch.group = number + 1;
  launch.epochs[0]++;
  launch.epochs[1]++;
  launch.phase++;
  launch.simdgroups.resize((launch.threads + LANES - 1) / LANES);
  for (unsigned i = 0; i < launch.simdgroups.size(); i++) {
    Simdgroup& group = launch.simdgroups[i];
    group.first = i * LANES;
    group.count = std::min(LANES, launch.threads - group.first);
    group.epochs[0] = group.epochs[1] = 0;
  }
  for (unsigned i = 0; i < launch.threads; i++) prepare_thread(i, position, size);
  memory.poison_variables();
  if (launch.count) traffic.start_group();
}

static uint32_t random_number() {
  static uint32_t state = launch.seed * 2654435761u | 1;
  state ^= state << 13;
  state ^= state >> 17;
  return state ^= state << 5;
}

static void run_group(uint64_t number) {
  prepare_group(number);
  const unsigned count = launch.simdgroups.size();
  do {
    const unsigned start = launch.seed ? random_number() % count : 0;
    for (unsigned k = 0; k < count; k++) run_simdgroup((start + k) % count);
  } while (release_barrier());
  if (!launch.count) return;
  for (unsigned i = 0; i < launch.threads; i++)
    traffic.most_loads = std::max(traffic.most_loads, launch.fibers[i].loads);
}

static void prepare_threads() {
  const unsigned* size = launch.threadgroup;
  const unsigned most = size[0] * size[1] * size[2];
  launch.fibers.resize(most);
  launch.stacks = map_stacks(most);
  for (unsigned i = 0; i < most; i++) {
    Thread& t = launch.fibers[i].thread;
    for (int d = 0; d < 3; d++) {
      t.threadgroups_per_grid[d] = launch.groups[d];
      t.threads_per_grid[d] = t.grid_size[d] = launch.grid[d];
      t.dispatch_threads_per_threadgroup[d] = size[d];
      t.grid_origin[d] = 0;
    }
    t.thread_index_in_threadgroup = i;
    t.thread_index_in_simdgroup = i % LANES;
    t.thread_index_in_quadgroup = i % 4;
    t.simdgroup_index_in_threadgroup = i / LANES;
    t.quadgroup_index_in_threadgroup = i / 4;
    t.dispatch_simdgroups_per_threadgroup = (most + LANES - 1) / LANES;
    t.dispatch_quadgroups_per_threadgroup = (most + 3) / 4;
    t.threads_per_simdgroup = t.thread_execution_width = LANES;
  }
  for (unsigned i = 0; i < LANES; i++) lane_order[i] = i;
  for (unsigned i = LANES - 1; launch.seed && i > 0; i--)
    std::swap(lane_order[i], lane_order[random_number() % (i + 1)]);
}

uint64_t run_launch(Kernel compiled, void** buffers) {
  kernel = compiled;
  kernel_buffers = buffers;
  prepare_threads();
  const uint64_t groups = 1ull * launch.groups[0] * launch.groups[1] * launch.groups[2];
  // A step without a common divisor visits every threadgroup once.
  uint64_t step = 1, at = 0;
  if (launch.seed && groups > 1) {
    at = random_number() % groups;
    step = groups - 1 - random_number() % (groups / 2 + 1) % groups;
    auto divisor = [](uint64_t a, uint64_t b) {
      while (b) std::swap(a %= b, b);
      return a;
    };
    while (step == 0 || divisor(step, groups) != 1) step = (step + 1) % groups;
  }
  for (uint64_t i = 0; i < groups; i++, at = (at + step) % groups) run_group(at);
  return groups;
}

}  // namespace sim

using namespace sim;

extern "C" {

void sim_barrier(bool simdgroup, int flags, Site site) {
  launch.current->flags = flags;
  launch.current->needs_all = false;
  if (simdgroup)
    wait_at(Wait::SIMDGROUP_BARRIER, site, "simdgroup_barrier");
  else
    wait_at(Wait::BARRIER, site, "threadgroup_barrier");
}

Exchange* sim_exchange(
    const void* mine, unsigned bytes, Site site, const char* what, Participation lanes,
    int same) {
  Fiber& fiber = *launch.current;
  const Thread& t = fiber.thread;
  Simdgroup& group = launch.simdgroups[t.simdgroup_index_in_threadgroup];
  memcpy(group.incoming[t.thread_index_in_simdgroup], mine, bytes);
  fiber.bytes = bytes;
  fiber.needs_all = lanes == ALL_LANES;
  fiber.same = same;
  wait_at(Wait::EXCHANGE, site, what);
  return &group.exchange;
}

}  // extern "C"
