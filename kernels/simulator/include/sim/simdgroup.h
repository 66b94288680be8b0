// Barriers and what the lanes of a simdgroup do together: shuffles, reductions, votes, quads.
#pragma once
#pragma clang system_header
#include "sim/math.h"

namespace metal {

enum class mem_flags : int {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<int>(a) | static_cast<int>(b));
}
enum memory_order {
  memory_order_relaxed,
  memory_order_acquire,
  memory_order_release,
  memory_order_acq_rel,
  memory_order_seq_cst,
};
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device,
  thread_scope_system,
};

SIM_INLINE void threadgroup_barrier(mem_flags flags, SIM_SITE) {
  sim::sim_barrier(false, static_cast<int>(flags), site);
}
SIM_INLINE void simdgroup_barrier(mem_flags flags, SIM_SITE) {
  sim::sim_barrier(true, static_cast<int>(flags), site);
}
SIM_INLINE void atomic_thread_fence(
    mem_flags flags, memory_order = memory_order_seq_cst, thread_scope = thread_scope_device) {
  sim::sim_fence(static_cast<int>(flags));
}

// The value that lane `source` brought, or one's own where `exists` is false. `same` is what the
// lanes have to agree on.
template <typename T>
SIM_UNCHECKED T exchange_lane(
    const T& mine, int source, const char* what, sim::Site site, bool exists = true,
    int same = 0) {
  static_assert(sizeof(T) <= sim::SLOT);
  sim::Exchange* all = sim::sim_exchange(&mine, sizeof(T), site, what, sim::ANY_LANES, same);
  if (!exists) return mine;
  T result;
  if (source < 0 || source >= 32 || !(all->mask >> source & 1)) {
    sim::sim_undefined(what, site);
    __builtin_memset(&result, 0xFF, sizeof result);
  } else {
    __builtin_memcpy(&result, all->slots[source], sizeof result);
  }
  return result;
}

#define SIM_LANE static_cast<int>(sim::sim_thread->thread_index_in_simdgroup)
#define SIM_SHUFFLE(name, parameter, source, exists, same)                                \
  template <typename T>                                                                   \
  SIM_INLINE T name(T data, ushort parameter, SIM_SITE) {                                 \
    const int lane = SIM_LANE, to = source;                                               \
    return exchange_lane<T>(data, to, #name, site, exists, same);                         \
  }
// Beyond the edge up and down leave a lane its own value. But for simd_shuffle and quad_shuffle,
// all lanes must name the same lane, mask or distance.
SIM_SHUFFLE(simd_shuffle, index, (lane & 0) + index, true, 0)
SIM_SHUFFLE(simd_broadcast, index, (lane & 0) + index, true, index)
SIM_SHUFFLE(simd_shuffle_xor, mask, lane ^ mask, true, mask)
SIM_SHUFFLE(simd_shuffle_down, delta, lane + delta, to < 32, delta)
SIM_SHUFFLE(simd_shuffle_up, delta, lane - delta, to >= 0, delta)
SIM_SHUFFLE(simd_shuffle_rotate_down, delta, (lane + delta) & 31, true, delta)
SIM_SHUFFLE(simd_shuffle_rotate_up, delta, (lane - delta) & 31, true, delta)
SIM_SHUFFLE(quad_shuffle, index, (lane & ~3) + index, true, 0)
SIM_SHUFFLE(quad_broadcast, index, (lane & ~3) + index, true, 0)
SIM_SHUFFLE(quad_shuffle_xor, mask, lane ^ mask, true, 0)
SIM_SHUFFLE(quad_shuffle_down, delta, lane + delta, (to & ~3) == (lane & ~3), 0)
SIM_SHUFFLE(quad_shuffle_up, delta, lane - delta, (to & ~3) == (lane & ~3), 0)
#undef SIM_SHUFFLE

template <typename T>
struct Filling {
  T data, filling;
};
template <typename T>
SIM_INLINE T simd_shuffle_and_fill_down(
    T data, T filling, ushort delta, ushort modulo = 32, SIM_SITE) {
  const int lane = SIM_LANE, base = lane / modulo * modulo, to = lane - base + delta;
  const Filling<T> both = {data, filling};
  const Filling<T> got =
      exchange_lane(both, base + to % modulo, "simd_shuffle_and_fill_down", site);
  return to < modulo ? got.data : got.filling;
}
template <typename T>
SIM_INLINE T simd_shuffle_and_fill_up(
    T data, T filling, ushort delta, ushort modulo = 32, SIM_SITE) {
  const int lane = SIM_LANE, base = lane / modulo * modulo, to = lane - base - delta;
  const Filling<T> both = {data, filling};
  const Filling<T> got = exchange_lane(
      both, base + (to + modulo) % modulo, "simd_shuffle_and_fill_up", site);
  return to >= 0 ? got.data : got.filling;
}

// Pairwise over the lanes first..first+count that take part; where all of a simdgroup receive
// the same, the first of them computes it for the others.
template <typename T, typename Combine>
SIM_UNCHECKED T reduce_lanes(
    const T& mine, int count, const char* what, sim::Site site, Combine combine) {
  static_assert(sizeof(T) <= sim::SLOT);
  sim::Exchange* all = sim::sim_exchange(&mine, sizeof(T), site, what, sim::ANY_LANES);
  T result;
  if (count == 32 && all->ready) {
    __builtin_memcpy(&result, all->result, sizeof result);
    return result;
  }
  T values[32];
  bool there[32];
  const int first = SIM_LANE / count * count;
  for (int i = 0; i < count; i++) {
    there[i] = all->mask >> (first + i) & 1;
    if (there[i]) __builtin_memcpy(&values[i], all->slots[first + i], sizeof(T));
  }
  for (int step = 1; step < count; step *= 2) {
    for (int i = 0; i < count; i += 2 * step) {
      if (there[i] && there[i + step]) {
        values[i] = combine(values[i], values[i + step]);
      } else if (there[i + step]) {
        values[i] = values[i + step];
        there[i] = true;
      }
    }
  }
  if (count == 32) {
    __builtin_memcpy(all->result, &values[0], sizeof(T));
    all->ready = true;
  }
  return values[0];
}

#define SIM_REDUCTION(name, lanes, expression)                                            \
  template <typename T>                                                                   \
  SIM_INLINE T name(T data, SIM_SITE) {                                                   \
    return reduce_lanes<T>(data, lanes, #name, site, [](T a, T b) -> T {                  \
      return static_cast<T>(expression);                                                  \
    });                                                                                   \
  }
SIM_REDUCTION(simd_sum, 32, a + b)
SIM_REDUCTION(simd_product, 32, a * b)
SIM_REDUCTION(simd_max, 32, max(a, b))
SIM_REDUCTION(simd_min, 32, min(a, b))
SIM_REDUCTION(simd_and, 32, a & b)
SIM_REDUCTION(simd_or, 32, a | b)
SIM_REDUCTION(simd_xor, 32, a ^ b)
SIM_REDUCTION(quad_sum, 4, a + b)
SIM_REDUCTION(quad_product, 4, a * b)
SIM_REDUCTION(quad_max, 4, max(a, b))
SIM_REDUCTION(quad_min, 4, min(a, b))
SIM_REDUCTION(quad_and, 4, a & b)
SIM_REDUCTION(quad_or, 4, a | b)
SIM_REDUCTION(quad_xor, 4, a ^ b)
#undef SIM_REDUCTION

template <typename T, typename Combine>
SIM_UNCHECKED T scan_lanes(
    const T& mine, T start, bool inclusive, const char* what, sim::Site site, Combine combine) {
  sim::Exchange* all = sim::sim_exchange(&mine, sizeof(T), site, what, sim::ANY_LANES);
  for (int i = 0; i < SIM_LANE + inclusive; i++) {
    T value;
    __builtin_memcpy(&value, all->slots[i], sizeof value);
    if (all->mask >> i & 1) start = combine(start, value);
  }
  return start;
}
#define SIM_SCAN(name, start, inclusive, expression)                                      \
  template <typename T>                                                                   \
  SIM_INLINE T name(T data, SIM_SITE) {                                                   \
    return scan_lanes<T>(data, T(start), inclusive, #name, site, [](T a, T b) -> T {      \
      return static_cast<T>(expression);                                                  \
    });                                                                                   \
  }
SIM_SCAN(simd_prefix_inclusive_sum, 0, true, a + b)
SIM_SCAN(simd_prefix_exclusive_sum, 0, false, a + b)
SIM_SCAN(simd_prefix_inclusive_product, 1, true, a * b)
SIM_SCAN(simd_prefix_exclusive_product, 1, false, a * b)
#undef SIM_SCAN

// Lanes that voted yes, and the lanes that voted at all.
struct Ballot {
  uint yes, voters;
};
inline SIM_UNCHECKED Ballot ballot(bool vote, const char* what, sim::Site site) {
  sim::Exchange* all = sim::sim_exchange(&vote, sizeof vote, site, what, sim::ANY_LANES);
  uint yes = 0;
  for (int i = 0; i < 32; i++) yes |= uint(all->mask >> i & all->slots[i][0] & 1) << i;
  return {yes, all->mask};
}
struct simd_vote {
  typedef ulong vote_t;
  vote_t bits;
  explicit constexpr simd_vote(vote_t v = 0) : bits(v) {}
  explicit constexpr operator vote_t() const { return bits; }
  constexpr bool all() const { return static_cast<uint>(bits) == ~0u; }
  constexpr bool any() const { return bits != 0; }
};
SIM_INLINE simd_vote simd_ballot(bool vote, SIM_SITE) {
  return simd_vote(ballot(vote, "simd_ballot", site).yes);
}
SIM_INLINE simd_vote simd_active_threads_mask(SIM_SITE) {
  return simd_vote(ballot(true, "simd_active_threads_mask", site).yes);
}
SIM_INLINE bool simd_any(bool vote, SIM_SITE) { return ballot(vote, "simd_any", site).yes != 0; }
SIM_INLINE bool simd_all(bool vote, SIM_SITE) {
  const Ballot result = ballot(vote, "simd_all", site);
  return result.yes == result.voters;
}
SIM_INLINE bool simd_is_first(SIM_SITE) {
  return __builtin_ctz(ballot(true, "simd_is_first", site).voters) == SIM_LANE;
}
SIM_INLINE bool simd_is_helper_thread() { return false; }
template <typename T>
SIM_UNCHECKED T simd_broadcast_first(T data, SIM_SITE) {
  sim::Exchange* all =
      sim::sim_exchange(&data, sizeof(T), site, "simd_broadcast_first", sim::ANY_LANES);
  __builtin_memcpy(&data, all->slots[__builtin_ctz(all->mask)], sizeof data);
  return data;
}

}  // namespace metal
