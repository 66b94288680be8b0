// metal_atomic. The threads of the simulator take turns only at barriers and simdgroup functions,
// so plain reads and writes are atomic here; the runtime is told, to tell them from races.
#pragma once
#pragma clang system_header
#include "sim/simdgroup.h"

namespace metal {

template <typename T>
struct atomic {
  T value;
};
template <typename T>
using _atomic = atomic<T>;

typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;
typedef atomic<ulong> atomic_ulong;

// The T of an atomic<T> in any address space.
template <typename A>
struct AtomicValue;
template <typename T>
struct AtomicValue<atomic<T>> {
  using type = T;
};
template <typename A>
using atomic_value =
    typename AtomicValue<remove_cv_t<remove_addrspace_t<std::remove_volatile_t<A>>>>::type;

#ifdef SIM_SYNTAX
#define SIM_ATOMIC(name, parameters, result)                                              \
  template <typename A, typename T = atomic_value<A>>                                     \
  result name parameters;
SIM_ATOMIC(atomic_load_explicit, (const A*, memory_order), T)
SIM_ATOMIC(atomic_store_explicit, (A*, T, memory_order), void)
SIM_ATOMIC(atomic_exchange_explicit, (A*, T, memory_order), T)
SIM_ATOMIC(atomic_fetch_add_explicit, (A*, T, memory_order), T)
SIM_ATOMIC(atomic_fetch_sub_explicit, (A*, T, memory_order), T)
SIM_ATOMIC(atomic_fetch_max_explicit, (A*, T, memory_order), T)
SIM_ATOMIC(atomic_fetch_min_explicit, (A*, T, memory_order), T)
SIM_ATOMIC(atomic_fetch_and_explicit, (A*, T, memory_order), T)
SIM_ATOMIC(atomic_fetch_or_explicit, (A*, T, memory_order), T)
SIM_ATOMIC(atomic_fetch_xor_explicit, (A*, T, memory_order), T)
SIM_ATOMIC(
    atomic_compare_exchange_weak_explicit, (A*, T*, T, memory_order, memory_order), bool)
#undef SIM_ATOMIC
#else
template <typename A, typename T = atomic_value<A>>
SIM_UNCHECKED T atomic_load_explicit(const A* object, memory_order, SIM_SITE) {
  sim::sim_atomic(object, sizeof(T), true, false, site);
  return object->value;
}
template <typename A, typename T = atomic_value<A>>
SIM_UNCHECKED void atomic_store_explicit(
    A* object, std::common_type_t<T> desired, memory_order, SIM_SITE) {
  sim::sim_atomic(object, sizeof(T), false, true, site);
  object->value = desired;
}
#define SIM_ATOMIC(name, expression)                                                      \
  template <typename A, typename T = atomic_value<A>>                                     \
  SIM_UNCHECKED T name(A* object, std::common_type_t<T> operand, memory_order, SIM_SITE) { \
    sim::sim_atomic(object, sizeof(T), true, true, site);                                 \
    const T old = object->value;                                                          \
    object->value = static_cast<T>(expression);                                           \
    return old;                                                                           \
  }
SIM_ATOMIC(atomic_exchange_explicit, operand)
SIM_ATOMIC(atomic_fetch_add_explicit, old + operand)
SIM_ATOMIC(atomic_fetch_sub_explicit, old - operand)
SIM_ATOMIC(atomic_fetch_max_explicit, old < operand ? operand : old)
SIM_ATOMIC(atomic_fetch_min_explicit, operand < old ? operand : old)
SIM_ATOMIC(atomic_fetch_and_explicit, old& operand)
SIM_ATOMIC(atomic_fetch_or_explicit, old | operand)
SIM_ATOMIC(atomic_fetch_xor_explicit, old ^ operand)
#undef SIM_ATOMIC
template <typename A, typename T = atomic_value<A>>
SIM_UNCHECKED bool atomic_compare_exchange_weak_explicit(
    A* object, T* expected, std::common_type_t<T> desired, memory_order, memory_order,
    SIM_SITE) {
  sim::sim_atomic(object, sizeof(T), true, true, site);
  const T old = object->value;
  const bool same = __builtin_memcmp(&old, expected, sizeof old) == 0;
  if (same) object->value = desired;
  *expected = old;
  return same;
}
#endif

}  // namespace metal
