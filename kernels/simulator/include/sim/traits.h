// metal_type_traits and metal_limits.
#pragma once
#pragma clang system_header
#include "sim/base.h"

namespace metal {

using std::add_const;
using std::bool_constant;
using std::conditional;
using std::conditional_t;
using std::conjunction;
using std::decay;
using std::decay_t;
using std::declval;
using std::disjunction;
using std::enable_if;
using std::enable_if_t;
using std::false_type;
using std::integral_constant;
using std::is_base_of;
using std::is_class;
using std::is_class_v;
using std::is_const;
using std::is_const_v;
using std::is_constructible;
using std::is_convertible;
using std::is_convertible_v;
using std::is_enum;
using std::is_integral;
using std::is_integral_v;
using std::is_pointer;
using std::is_pointer_v;
using std::is_same;
using std::is_same_v;
using std::is_signed;
using std::is_signed_v;
using std::is_trivially_copyable_v;
using std::is_unsigned;
using std::is_unsigned_v;
using std::is_void;
using std::is_void_v;
using std::make_signed;
using std::make_signed_t;
using std::make_unsigned;
using std::make_unsigned_t;
using std::negation;
using std::remove_const;
using std::remove_const_t;
using std::remove_cv;
using std::remove_cv_t;
using std::remove_pointer;
using std::remove_pointer_t;
using std::remove_reference;
using std::remove_reference_t;
using std::true_type;

// std's do not know half and bfloat.
template <typename T>
constexpr bool is_floating_point_v = is_same_v<remove_cv_t<T>, float> ||
    is_same_v<remove_cv_t<T>, half> || is_same_v<remove_cv_t<T>, bfloat>;
template <typename T>
struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <typename T>
constexpr bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;
template <typename T>
struct is_arithmetic : bool_constant<is_arithmetic_v<T>> {};
template <typename T>
constexpr bool is_scalar_v = is_arithmetic_v<T>;
template <typename T>
struct is_scalar : is_arithmetic<T> {};

template <typename T>
struct remove_addrspace {
  using type = T;
};
#ifdef SIM_SYNTAX
template <typename T>
struct remove_addrspace<device T> {
  using type = T;
};
template <typename T>
struct remove_addrspace<threadgroup T> {
  using type = T;
};
template <typename T>
struct remove_addrspace<constant T> {
  using type = const T;
};
#endif
template <typename T>
using remove_addrspace_t = typename remove_addrspace<T>::type;

template <typename T, typename = void>
struct numeric_limits {
  static constexpr bool is_specialized = false;
};

template <typename T>
struct numeric_limits<T, enable_if_t<is_integral_v<T>>> {
  static constexpr bool is_specialized = true, is_integer = true, is_signed = is_signed_v<T>;
  static constexpr int digits = is_same_v<T, bool> ? 1 : 8 * sizeof(T) - is_signed;
  static constexpr T max() {
    return is_same_v<T, bool> ? T(1) : T(~0ul >> (64 - digits));
  }
  static constexpr T min() { return is_signed ? T(-max() - 1) : T(0); }
  static constexpr T lowest() { return min(); }
};

#define SIM_LIMITS(T, digits_, largest, smallest, step)                                   \
  template <>                                                                             \
  struct numeric_limits<T> {                                                              \
    static constexpr bool is_specialized = true, is_integer = false, is_signed = true;    \
    static constexpr int digits = digits_;                                                \
    static constexpr T max() { return static_cast<T>(largest); }                          \
    static constexpr T min() { return static_cast<T>(smallest); }                         \
    static constexpr T lowest() { return -max(); }                                        \
    static constexpr T epsilon() { return static_cast<T>(step); }                         \
    static constexpr T infinity() { return static_cast<T>(__builtin_inff()); }            \
    static constexpr T quiet_NaN() { return static_cast<T>(__builtin_nanf("")); }         \
    static constexpr T signaling_NaN() { return quiet_NaN(); }                            \
  };
SIM_LIMITS(float, 24, FLT_MAX, FLT_MIN, FLT_EPSILON)
SIM_LIMITS(half, 11, 65504.0f, 6.103515625e-05f, 9.765625e-04f)
SIM_LIMITS(bfloat, 8, 3.3895313892515355e38f, FLT_MIN, 0.0078125f)
#undef SIM_LIMITS

}  // namespace metal
