// Vectors to check: clang's own, because no class can be copied out of an address space.
//
// They do not convert by value, so constructors and casts go through `make`; the rewriter and the
// macros at the end send them there.
#pragma once
#pragma clang system_header
#include "sim/traits.h"

namespace metal {

template <typename T, int N>
using vec = T __attribute__((ext_vector_type(N)));

template <typename T>
struct Shape {
  static constexpr int size = 1;
  using Element = T;
};
template <typename T, int N>
struct Shape<T __attribute__((ext_vector_type(N)))> {
  static constexpr int size = N;
  using Element = T;
};
template <typename T>
constexpr int size_of_vector = Shape<remove_cv_t<remove_reference_t<T>>>::size;
template <typename T>
constexpr bool is_vector_v = (size_of_vector<T> > 1);
template <typename T>
struct is_vector : bool_constant<is_vector_v<T>> {};

}  // namespace metal

namespace sim {

// A V made of values: a scalar, a vector of as many components, or parts that add up.
template <typename V, typename... A>
constexpr V make(A... parts) {
  constexpr int size = metal::size_of_vector<V>, given = (0 + ... + metal::size_of_vector<A>);
  if constexpr (size == 1) {
    return V(parts...);
  } else {
    static_assert(given == size || (given == 1 && sizeof...(A) == 1),
                  "wrong number of vector components");
    // Each part must convert, if explicitly.
    using Element = typename metal::Shape<V>::Element;
    (static_cast<void>(static_cast<Element>(typename metal::Shape<A>::Element{})), ...);
    return V{};
  }
}

// `(float4)x` becomes `cast<float4>{}->*x`: ->* binds nearly as tightly as a cast.
template <typename V>
struct Negated {};
template <typename V>
struct cast {
  constexpr Negated<V> operator-() const { return {}; }
};
template <typename V, typename A>
constexpr V operator->*(cast<V>, A value) {
  return make<V>(value);
}
template <typename V, typename A>
constexpr V operator->*(Negated<V>, A value) {
  return -make<V>(value);
}

}  // namespace sim
