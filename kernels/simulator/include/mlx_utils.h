// What MLX puts before every custom kernel on a Mac (its utils.h): the same names, written anew.
//
// Checked against the headers of mlx-metal 0.32.4 by the published-kernels test.
#pragma once
#pragma clang system_header
#include "metal_stdlib"

typedef half float16_t;
typedef bfloat bfloat16_t;

inline uint16_t bfloat16_to_uint16(const bfloat16_t x) { return as_type<uint16_t>(x); }
inline bfloat16_t uint16_to_bfloat16(const uint16_t x) { return as_type<bfloat16_t>(x); }

static constant constexpr int MAX_REDUCE_SPECIALIZED_DIMS = 4;
static constant constexpr int REDUCE_N_READS = 4;
static constant constexpr int REDUCE_N_WRITES = 4;
static constant constexpr int SOFTMAX_N_READS = 4;
static constant constexpr int RMS_N_READS = 4;
static constant constexpr int RMS_LOOPED_LIMIT = 4096;
static constant constexpr int CROSS_ENTROPY_N_READS = 4;

#define MLX_MTL_PRAGMA_UNROLL _Pragma("clang loop unroll(full)")
#define instantiate_kernel(name, func, ...) \
  template [[host_name(name)]] [[kernel]] decltype(func<__VA_ARGS__>) func<__VA_ARGS__>;

template <typename T>
struct complex_t {
  using value_type = T;
  T real, imag;
  complex_t() = default;
  constexpr complex_t(T re, T im) : real(re), imag(im) {}
  template <typename U, typename = enable_if_t<is_arithmetic_v<U>>>
  constexpr complex_t(U x) : real(static_cast<T>(x)), imag(0) {}
  constexpr complex_t(vec<T, 2> v) : real(v[0]), imag(v[1]) {}
  template <typename U, typename = enable_if_t<is_arithmetic_v<U>>>
  constexpr operator U() const {
    return static_cast<U>(real);
  }
  constexpr operator vec<T, 2>() const { return {real, imag}; }
  constexpr complex_t& operator+=(complex_t b) {
    real += b.real;
    imag += b.imag;
    return *this;
  }
  friend constexpr complex_t operator-(complex_t x) { return {-x.real, -x.imag}; }
  friend constexpr complex_t operator+(complex_t a, complex_t b) {
    return {a.real + b.real, a.imag + b.imag};
  }
  friend constexpr complex_t operator-(complex_t a, complex_t b) {
    return {a.real - b.real, a.imag - b.imag};
  }
  friend constexpr complex_t operator*(complex_t a, complex_t b) {
    return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
  }
  friend constexpr complex_t operator/(complex_t a, complex_t b) {
    const T norm = b.real * b.real + b.imag * b.imag;
    return {(a.real * b.real + a.imag * b.imag) / norm,
            (a.imag * b.real - a.real * b.imag) / norm};
  }
  // Ordered by the real part, then by the imaginary one.
  friend constexpr bool operator==(complex_t a, complex_t b) {
    return a.real == b.real && a.imag == b.imag;
  }
  friend constexpr bool operator<(complex_t a, complex_t b) {
    return a.real < b.real || (a.real == b.real && a.imag < b.imag);
  }
  friend constexpr bool operator>(complex_t a, complex_t b) { return b < a; }
  friend constexpr bool operator<=(complex_t a, complex_t b) { return a < b || a == b; }
  friend constexpr bool operator>=(complex_t a, complex_t b) { return b <= a; }
};
typedef complex_t<float> complex64_t;
template <typename T>
static constexpr constant bool is_complex_v = false;
template <typename T>
static constexpr constant bool is_complex_v<complex_t<T>> = true;

template <typename U>
struct WorkPerThread {
  static_assert(sizeof(U) <= 8, "Type too large");
  static constexpr constant int n = 8 / sizeof(U);
};

template <typename U>
struct Limits {
  using Of = metal::numeric_limits<U>;
  static constexpr U largest() { return is_integral_v<U> ? Of::max() : infinity(); }
  static constexpr U infinity() {
    if constexpr (is_floating_point_v<U>) {
      return Of::infinity();
    } else {
      return Of::max();
    }
  }
  static constexpr constant U max = largest();
  static constexpr constant U min = is_integral_v<U> ? Of::lowest() : static_cast<U>(-largest());
  static constexpr constant U finite_max = Of::max();
  static constexpr constant U finite_min = Of::lowest();
};
template <>
struct Limits<bool> {
  static constexpr constant bool max = true;
  static constexpr constant bool min = false;
};
template <typename T>
struct Limits<complex_t<T>> {
  static constexpr constant complex_t<T> max = complex_t<T>(INFINITY, INFINITY);
  static constexpr constant complex_t<T> min = complex_t<T>(-INFINITY, -INFINITY);
};

// Offset of an element, given by its row-major index or its position, in a strided array.
template <typename I = int64_t>
METAL_FUNC I elem_to_loc(
    I elem, constant const int* shape, constant const int64_t* strides, int ndim) {
  I at = 0;
  for (int d = ndim - 1; d >= 0 && elem > 0; --d) {
    at += (elem % shape[d]) * I(strides[d]);
    elem /= shape[d];
  }
  return at;
}
template <typename I = int64_t>
METAL_FUNC I elem_to_loc(
    uint3 elem, constant const int* shape, constant const int64_t* strides, int ndim) {
  I at = elem.x * I(strides[ndim - 1]) + elem.y * I(strides[ndim - 2]);
  uint rest = elem.z;
  for (int d = ndim - 3; d >= 0; --d) {
    at += (rest % shape[d]) * I(strides[d]);
    rest /= shape[d];
  }
  return at;
}
template <typename I = int64_t>
METAL_FUNC I elem_to_loc_1(uint elem, constant const int64_t& stride) {
  return elem * I(stride);
}
template <typename I = int64_t>
METAL_FUNC I elem_to_loc_2(uint2 elem, constant const int64_t* strides) {
  return elem.x * I(strides[1]) + elem.y * I(strides[0]);
}
template <typename I = int64_t>
METAL_FUNC I elem_to_loc_3(uint3 elem, constant const int64_t* strides) {
  return elem.x * I(strides[2]) + elem.y * I(strides[1]) + elem.z * I(strides[0]);
}
template <typename I = int64_t>
METAL_FUNC vec<I, 2> elem_to_loc_2_nd(
    uint3 elem, constant const int* shape, constant const int64_t* a_strides,
    constant const int64_t* b_strides, int ndim) {
  return {elem_to_loc<I>(elem, shape, a_strides, ndim),
          elem_to_loc<I>(elem, shape, b_strides, ndim)};
}
template <typename I = int64_t>
METAL_FUNC vec<I, 3> elem_to_loc_3_nd(
    uint3 elem, constant const int* shape, constant const int64_t* a_strides,
    constant const int64_t* b_strides, constant const int64_t* c_strides, int ndim) {
  return {elem_to_loc<I>(elem, shape, a_strides, ndim),
          elem_to_loc<I>(elem, shape, b_strides, ndim),
          elem_to_loc<I>(elem, shape, c_strides, ndim)};
}

template <typename T, typename U>
inline T ceildiv(T n, U m) {
  return (n + m - 1) / m;
}

// log(1 + x) without the loss for small x, by Goldberg's correction.
inline float log1p(float x) {
  const float sum = 1.0f + x;
  if (sum == Limits<float>::max) return Limits<float>::max;
  return sum == 1.0f ? x : x * (metal::log(sum) / (sum - 1.0f));
}
inline bfloat16_t log1p(bfloat16_t x) {
  return static_cast<bfloat16_t>(log1p(static_cast<float>(x)));
}
inline float hypot(float x, float y) {
  if (metal::isinf(x) || metal::isinf(y)) return INFINITY;
  const float a = metal::fmax(metal::fabs(x), metal::fabs(y));
  const float b = metal::fmin(metal::fabs(x), metal::fabs(y));
  return a == 0.0f ? a + b : a * metal::sqrt(1.0f + (b / a) * (b / a));
}

template <bool condition, typename T, typename U>
struct ConditionalType {
  using type = conditional_t<condition, T, U>;
};
template <typename U, typename T>
inline U cast_to(T value) {
  return static_cast<U>(value);
}
