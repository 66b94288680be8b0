// metal_math, metal_common, metal_geometric, metal_relational and metal_integer.
//
// Plain overloads for each type and size, not templates: only then do calls as `fmax(0, x)` and
// `min(i, 1u)` resolve, or fail to, as they do in Metal. Half types compute in float and round
// once. bfloat has the functions that MLX's bf16_math.h adds. fast:: and precise:: are the same
// here: the host's functions, which err by at most one or two units in the last place.
#pragma once
#pragma clang system_header
#include "sim/types.h"

namespace sim {
// Longer than the float that an unsuffixed literal is here.
constexpr double PI = 3.14159265358979323846L, LN10 = 2.30258509299404568402L;
}  // namespace sim

namespace metal {

#define SIM_LANES_1(V, name)                                                              \
  SIM_INLINE V name(V a) {                                                                \
    for (int i = 0; i < size_of_vector<V>; i++) a[i] = name(a[i]);                        \
    return a;                                                                             \
  }
#define SIM_LANES_2(V, name)                                                              \
  SIM_INLINE V name(V a, V b) {                                                           \
    for (int i = 0; i < size_of_vector<V>; i++) a[i] = name(a[i], b[i]);                  \
    return a;                                                                             \
  }
#define SIM_LANES_3(V, name)                                                              \
  SIM_INLINE V name(V a, V b, V c) {                                                      \
    for (int i = 0; i < size_of_vector<V>; i++) a[i] = name(a[i], b[i], c[i]);            \
    return a;                                                                             \
  }
#define SIM_SIZES(lanes, T, name) lanes(T##2, name) lanes(T##3, name) lanes(T##4, name)
#define SIM_FLOAT_SIZES(lanes, name)                                                      \
  SIM_SIZES(lanes, float, name) SIM_SIZES(lanes, half, name) SIM_SIZES(lanes, bfloat, name)

// Each `expression` is in float x, y, z.
#define SIM_UNARY_OF(T, name, expression)                                                 \
  SIM_INLINE T name(T x_) {                                                               \
    const float x = static_cast<float>(x_);                                               \
    return static_cast<T>(expression);                                                    \
  }
#define SIM_BINARY_OF(T, name, expression)                                                \
  SIM_INLINE T name(T x_, T y_) {                                                         \
    const float x = static_cast<float>(x_), y = static_cast<float>(y_);                   \
    return static_cast<T>(expression);                                                    \
  }
#define SIM_TERNARY_OF(T, name, expression)                                               \
  SIM_INLINE T name(T x_, T y_, T z_) {                                                   \
    const float x = static_cast<float>(x_), y = static_cast<float>(y_);                   \
    const float z = static_cast<float>(z_);                                               \
    return static_cast<T>(expression);                                                    \
  }
#define SIM_UNARY(name, expression)                                                       \
  SIM_UNARY_OF(float, name, expression)                                                   \
  SIM_UNARY_OF(half, name, expression)                                                    \
  SIM_UNARY_OF(bfloat, name, expression)                                                  \
  SIM_FLOAT_SIZES(SIM_LANES_1, name)
#define SIM_BINARY(name, expression)                                                      \
  SIM_BINARY_OF(float, name, expression)                                                  \
  SIM_BINARY_OF(half, name, expression)                                                   \
  SIM_BINARY_OF(bfloat, name, expression)                                                 \
  SIM_FLOAT_SIZES(SIM_LANES_2, name)
#define SIM_TERNARY(name, expression)                                                     \
  SIM_TERNARY_OF(float, name, expression)                                                 \
  SIM_TERNARY_OF(half, name, expression)                                                  \
  SIM_TERNARY_OF(bfloat, name, expression)                                                \
  SIM_FLOAT_SIZES(SIM_LANES_3, name)

SIM_UNARY(acos, __builtin_acosf(x))
SIM_UNARY(acosh, __builtin_acoshf(x))
SIM_UNARY(asin, __builtin_asinf(x))
SIM_UNARY(asinh, __builtin_asinhf(x))
SIM_UNARY(atan, __builtin_atanf(x))
SIM_UNARY(atanh, __builtin_atanhf(x))
SIM_UNARY(ceil, __builtin_ceilf(x))
SIM_UNARY(cos, __builtin_cosf(x))
SIM_UNARY(cosh, __builtin_coshf(x))
SIM_UNARY(cospi, __builtin_cos(sim::PI * static_cast<double>(x)))
SIM_UNARY(exp, __builtin_expf(x))
SIM_UNARY(exp10, __builtin_exp(sim::LN10 * static_cast<double>(x)))
SIM_UNARY(exp2, __builtin_exp2f(x))
SIM_UNARY(fabs, __builtin_fabsf(x))
SIM_UNARY(abs, __builtin_fabsf(x))
SIM_UNARY(floor, __builtin_floorf(x))
SIM_UNARY(fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f))
SIM_UNARY(log, __builtin_logf(x))
SIM_UNARY(log10, __builtin_log10f(x))
SIM_UNARY(log2, __builtin_log2f(x))
SIM_UNARY(rint, __builtin_rintf(x))
SIM_UNARY(round, __builtin_roundf(x))
SIM_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))
SIM_UNARY(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))
SIM_UNARY(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == 0.0f ? x : 0.0f)
SIM_UNARY(sin, __builtin_sinf(x))
SIM_UNARY(sinh, __builtin_sinhf(x))
SIM_UNARY(sinpi, __builtin_sin(sim::PI * static_cast<double>(x)))
SIM_UNARY(sqrt, __builtin_sqrtf(x))
SIM_UNARY(tan, __builtin_tanf(x))
SIM_UNARY(tanh, __builtin_tanhf(x))
SIM_UNARY(tanpi, __builtin_tan(sim::PI * static_cast<double>(x)))
SIM_UNARY(trunc, __builtin_truncf(x))

SIM_BINARY(atan2, __builtin_atan2f(x, y))
SIM_BINARY(copysign, __builtin_copysignf(x, y))
SIM_BINARY(divide, x / y)
SIM_BINARY(fdim, __builtin_fdimf(x, y))
SIM_BINARY(fmax, __builtin_fmaxf(x, y))
SIM_BINARY(fmin, __builtin_fminf(x, y))
SIM_BINARY(max, __builtin_fmaxf(x, y))
SIM_BINARY(min, __builtin_fminf(x, y))
SIM_BINARY(fmod, __builtin_fmodf(x, y))
SIM_BINARY(pow, __builtin_powf(x, y))
SIM_BINARY(powr, x < 0.0f ? NAN : __builtin_powf(x, y))
SIM_BINARY(step, y < x ? 0.0f : 1.0f)

SIM_TERNARY(clamp, __builtin_fminf(__builtin_fmaxf(x, y), z))
SIM_TERNARY(fma, __builtin_fmaf(x, y, z))
SIM_TERNARY(mix, x + (y - x) * z)
SIM_TERNARY(fmax3, __builtin_fmaxf(x, __builtin_fmaxf(y, z)))
SIM_TERNARY(fmin3, __builtin_fminf(x, __builtin_fminf(y, z)))
SIM_TERNARY(max3, __builtin_fmaxf(x, __builtin_fmaxf(y, z)))
SIM_TERNARY(min3, __builtin_fminf(x, __builtin_fminf(y, z)))
SIM_TERNARY(fmedian3, __builtin_fmaxf(__builtin_fminf(x, y),
                                      __builtin_fminf(__builtin_fmaxf(x, y), z)))
SIM_TERNARY(median3, __builtin_fmaxf(__builtin_fminf(x, y),
                                     __builtin_fminf(__builtin_fmaxf(x, y), z)))
SIM_INLINE float smoothstep_(float t) { return t * t * (3.0f - 2.0f * t); }
SIM_TERNARY(smoothstep,
            smoothstep_(__builtin_fminf(__builtin_fmaxf((z - x) / (y - x), 0.0f), 1.0f)))

SIM_INLINE float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
SIM_INLINE float frexp(float x, int& exponent) { return __builtin_frexpf(x, &exponent); }
SIM_INLINE float modf(float x, float& whole) { return __builtin_modff(x, &whole); }
SIM_INLINE float ldexp(float x, int exponent) { return __builtin_ldexpf(x, exponent); }
SIM_INLINE half ldexp(half x, int exponent) {
  return static_cast<half>(__builtin_ldexpf(static_cast<float>(x), exponent));
}
SIM_INLINE int ilogb(float x) { return __builtin_ilogbf(x); }
SIM_INLINE float sincos(float x, float& cosine) {
  cosine = __builtin_cosf(x);
  return __builtin_sinf(x);
}

// Classification; a bool, or a vector of them.
#define SIM_TEST_OF(T, name, expression)                                                  \
  SIM_INLINE bool name(T x_) {                                                            \
    const float x = static_cast<float>(x_);                                               \
    return expression;                                                                    \
  }
#define SIM_TEST_LANES(V, name)                                                           \
  SIM_INLINE vec<bool, size_of_vector<V>> name(V a) {                                     \
    vec<bool, size_of_vector<V>> result{};                                                \
    for (int i = 0; i < size_of_vector<V>; i++) result[i] = name(a[i]);                   \
    return result;                                                                        \
  }
#define SIM_TEST(name, expression)                                                        \
  SIM_TEST_OF(float, name, expression)                                                    \
  SIM_TEST_OF(half, name, expression)                                                     \
  SIM_TEST_OF(bfloat, name, expression)                                                   \
  SIM_FLOAT_SIZES(SIM_TEST_LANES, name)
SIM_TEST(isfinite, __builtin_isfinite(x))
SIM_TEST(isinf, __builtin_isinf(x))
SIM_TEST(isnan, __builtin_isnan(x))
SIM_TEST(isnormal, __builtin_isnormal(x))
SIM_TEST(signbit, __builtin_signbit(x))

#define SIM_DOT(V)                                                                        \
  SIM_INLINE Shape<V>::Element dot(V a, V b) {                                            \
    auto sum = a[0] * b[0];                                                               \
    for (int i = 1; i < size_of_vector<V>; i++) sum += a[i] * b[i];                       \
    return sum;                                                                           \
  }                                                                                       \
  SIM_INLINE Shape<V>::Element length_squared(V a) { return dot(a, a); }                  \
  SIM_INLINE Shape<V>::Element length(V a) { return sqrt(dot(a, a)); }                    \
  SIM_INLINE Shape<V>::Element distance(V a, V b) { return length(a - b); }               \
  SIM_INLINE V normalize(V a) { return a * rsqrt(dot(a, a)); }
SIM_DOT(float2)
SIM_DOT(float3)
SIM_DOT(float4)
SIM_DOT(half2)
SIM_DOT(half3)
SIM_DOT(half4)
#undef SIM_DOT

SIM_INLINE float3 cross(float3 a, float3 b) {
  float3 c{};
  for (int i = 0; i < 3; i++)
    c[i] = a[(i + 1) % 3] * b[(i + 2) % 3] - a[(i + 2) % 3] * b[(i + 1) % 3];
  return c;
}

#define SIM_INTEGER(T)                                                                    \
  SIM_INLINE constexpr T min(T a, T b) { return b < a ? b : a; }                          \
  SIM_INLINE constexpr T max(T a, T b) { return a < b ? b : a; }                          \
  SIM_INLINE constexpr T clamp(T x, T low, T high) { return min(max(x, low), high); }     \
  SIM_INLINE constexpr T abs(T x) { return x < 0 ? static_cast<T>(-x) : x; }              \
  SIM_INLINE constexpr T absdiff(T a, T b) { return a < b ? b - a : a - b; }              \
  SIM_INLINE constexpr T min3(T a, T b, T c) { return min(a, min(b, c)); }                \
  SIM_INLINE constexpr T max3(T a, T b, T c) { return max(a, max(b, c)); }                \
  SIM_INLINE constexpr T popcount(T x) {                                                  \
    return __builtin_popcountl(static_cast<make_unsigned_t<T>>(x));                       \
  }                                                                                       \
  SIM_INLINE constexpr T clz(T x) {                                                       \
    const ulong bits = static_cast<make_unsigned_t<T>>(x);                                \
    return bits ? __builtin_clzl(bits) - (64 - 8 * sizeof(T)) : 8 * sizeof(T);            \
  }                                                                                       \
  SIM_INLINE constexpr T ctz(T x) {                                                       \
    return x ? __builtin_ctzl(static_cast<make_unsigned_t<T>>(x)) : 8 * sizeof(T);        \
  }                                                                                       \
  SIM_INLINE T reverse_bits(T x) {                                                        \
    const ulong bits = static_cast<make_unsigned_t<T>>(x);                                \
    return static_cast<T>(__builtin_bitreverse64(bits) >> (64 - 8 * sizeof(T)));          \
  }                                                                                       \
  SIM_INLINE constexpr T rotate(T x, T by) {                                              \
    using U = make_unsigned_t<T>;                                                         \
    constexpr unsigned width = 8 * sizeof(T);                                             \
    const unsigned left = static_cast<U>(by) % width;                                     \
    const U bits = static_cast<U>(x);                                                     \
    return static_cast<T>(left ? (bits << left) | (bits >> (width - left)) : bits);       \
  }                                                                                       \
  SIM_INLINE constexpr T extract_bits(T x, uint offset, uint bits) {                      \
    constexpr unsigned width = 8 * sizeof(T);                                             \
    if (bits == 0) return 0;                                                              \
    const auto high = static_cast<T>(                                                     \
        static_cast<make_unsigned_t<T>>(x) << (width - offset - bits));                   \
    return static_cast<T>(high >> (width - bits));                                        \
  }                                                                                       \
  SIM_INLINE constexpr T insert_bits(T base, T insert, uint offset, uint bits) {          \
    using U = make_unsigned_t<T>;                                                         \
    if (bits == 0) return base;                                                           \
    const U mask = (static_cast<U>(~U(0)) >> (8 * sizeof(T) - bits)) << offset;           \
    return static_cast<T>(                                                                \
        (static_cast<U>(base) & ~mask) | ((static_cast<U>(insert) << offset) & mask));    \
  }                                                                                       \
  SIM_INLINE constexpr T mulhi(T a, T b) {                                                \
    return static_cast<T>((static_cast<__int128>(a) * b) >> (8 * sizeof(T)));             \
  }
#define SIM_INTEGER_VECTORS(T)                                                            \
  SIM_SIZES(SIM_LANES_2, T, min)                                                          \
  SIM_SIZES(SIM_LANES_2, T, max)                                                          \
  SIM_SIZES(SIM_LANES_3, T, clamp)                                                        \
  SIM_SIZES(SIM_LANES_1, T, abs)                                                          \
  SIM_SIZES(SIM_LANES_1, T, popcount)
SIM_INTEGER(char)
SIM_INTEGER(signed char)
SIM_INTEGER(uchar)
SIM_INTEGER(short)
SIM_INTEGER(ushort)
SIM_INTEGER(int)
SIM_INTEGER(uint)
SIM_INTEGER(long)
SIM_INTEGER(ulong)
SIM_INTEGER_VECTORS(char)
SIM_INTEGER_VECTORS(uchar)
SIM_INTEGER_VECTORS(short)
SIM_INTEGER_VECTORS(ushort)
SIM_INTEGER_VECTORS(int)
SIM_INTEGER_VECTORS(uint)
SIM_INTEGER_VECTORS(long)
SIM_INTEGER_VECTORS(ulong)

SIM_INLINE constexpr int mul24(int a, int b) { return a * b; }
SIM_INLINE constexpr uint mul24(uint a, uint b) { return a * b; }
SIM_INLINE constexpr int mad24(int a, int b, int c) { return a * b + c; }
SIM_INLINE constexpr uint mad24(uint a, uint b, uint c) { return a * b + c; }

// b where the condition holds, else a.
template <typename T>
SIM_INLINE constexpr T select(T a, T b, bool condition) {
  return condition ? b : a;
}
template <typename T, int N, typename C>
SIM_INLINE constexpr vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<C, N> condition) {
  for (int i = 0; i < N; i++) a[i] = condition[i] ? b[i] : a[i];
  return a;
}
template <typename T, int N>
SIM_INLINE constexpr bool all(vec<T, N> v) {
  for (int i = 0; i < N; i++)
    if (!v[i]) return false;
  return true;
}
template <typename T, int N>
SIM_INLINE constexpr bool any(vec<T, N> v) {
  for (int i = 0; i < N; i++)
    if (v[i]) return true;
  return false;
}

namespace precise = ::metal;
namespace fast = ::metal;

}  // namespace metal
