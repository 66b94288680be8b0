// Vectors of W floats, for the instruction set that this file is compiled for.
//
// Arithmetic is the compiler's own on vector types; a * b + c becomes one instruction where there is
// one (-ffp-contract=fast). Everything lives in a namespace named after the instruction set, so that
// the linker never takes a function compiled for another one. For the same reason files that include
// this one call no function template of the standard library.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "kernel.h"
#include "runtime/pool.h"

#define INLINE static inline __attribute__((always_inline))
#define INLINE_LAMBDA __attribute__((always_inline))

namespace torchmlx::ISA {

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));
typedef uint16_t vh __attribute__((vector_size(2 * W)));

// The bits of half types, told apart by their C++ type.
struct half {
  uint16_t bits;
};
struct bfloat {
  uint16_t bits;
};

template <class T>
constexpr bool is_float = false;
template <>
constexpr bool is_float<float> = true;
template <class T>
constexpr bool is_bfloat = false;
template <>
constexpr bool is_bfloat<bfloat> = true;

INLINE int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

template <class V>
INLINE V read(const void* p) {
  V v;
  memcpy(&v, p, sizeof(V));
  return v;
}

template <class V>
INLINE void write(void* p, V v) {
  memcpy(p, &v, sizeof(V));
}

INLINE vf splat(float x) { return x - vf{}; }
INLINE vf bits_to_float(vu v) { return (vf)v; }
INLINE vu float_to_bits(vf v) { return (vu)v; }
INLINE vu splat_bits(uint32_t x) { return x - vu{}; }
INLINE vf select(vi condition, vf yes, vf no) {
  return (vf)(((vi)yes & condition) | ((vi)no & ~condition));
}
INLINE vu select(vi condition, vu yes, vu no) {
  return (yes & (vu)condition) | (no & ~(vu)condition);
}
// The second operand where either is NaN.
#if defined(__AVX512F__)
INLINE vf larger(vf a, vf b) { return (vf)_mm512_max_ps((__m512)a, (__m512)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm512_min_ps((__m512)a, (__m512)b); }
#elif defined(__AVX2__)
INLINE vf larger(vf a, vf b) { return (vf)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm256_min_ps((__m256)a, (__m256)b); }
#elif defined(__x86_64__)
INLINE vf larger(vf a, vf b) { return (vf)_mm_max_ps((__m128)a, (__m128)b); }
INLINE vf smaller(vf a, vf b) { return (vf)_mm_min_ps((__m128)a, (__m128)b); }
#else
INLINE vf larger(vf a, vf b) { return select(a > b, a, b); }
INLINE vf smaller(vf a, vf b) { return select(a < b, a, b); }
#endif

INLINE vu widen_bits(vh v) {
#if defined(__AVX512F__)
  return (vu)_mm512_cvtepu16_epi32((__m256i)v);
#elif defined(__AVX2__)
  return (vu)_mm256_cvtepu16_epi32((__m128i)v);
#else
  return __builtin_convertvector(v, vu);
#endif
}

INLINE vh narrow_bits(vu v) {
#if defined(__AVX512F__)
  return (vh)_mm512_cvtepi32_epi16((__m512i)v);
#else
  return __builtin_convertvector(v, vh);
#endif
}

INLINE vf widen(vh v, bfloat) { return bits_to_float(widen_bits(v) << 16); }

INLINE vh narrow(vf v, bfloat) {
  vu bits = float_to_bits(v);
  vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  vu quiet = (bits >> 16) | 0x40;
  return narrow_bits(select(v == v, rounded, quiet));
}

#if defined(__F16C__)
#if defined(__AVX512F__)
INLINE vf widen(vh v, half) { return (vf)_mm512_cvtph_ps((__m256i)v); }
INLINE vh narrow(vf v, half) { return (vh)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT); }
#else
INLINE vf widen(vh v, half) { return (vf)_mm256_cvtph_ps((__m128i)v); }
INLINE vh narrow(vf v, half) { return (vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT); }
#endif
#elif defined(__aarch64__)
INLINE vf widen(vh v, half) { return (vf)vcvt_f32_f16((float16x4_t)v); }
INLINE vh narrow(vf v, half) { return (vh)vcvt_f16_f32((float32x4_t)v); }
#else
INLINE vf widen(vh v, half) {
  vu wide = widen_bits(v);
  vu sign = (wide & 0x8000) << 16, rest = wide & 0x7fff;
  // The exponent moves from bias 15 to 127 by a product, which also makes subnormals normal.
  vf scaled = bits_to_float(rest << 13) * 0x1p112f;
  vu special = (rest << 13) | 0x7f800000;
  return bits_to_float(select((vi)(rest >= 0x7c00), special, float_to_bits(scaled)) | sign);
}

INLINE vh narrow(vf v, half) {
  vu bits = float_to_bits(v);
  vu sign = (bits >> 16) & 0x8000, rest = bits & 0x7fffffff;
  vu normal = (rest + 0xc8000fff + ((rest >> 13) & 1)) >> 13;
  // Adding a half puts the last bit of a half-precision subnormal at the end of the float.
  vu subnormal = float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000;
  vu huge = select((vi)(rest > 0x7f800000), splat_bits(0x7e00), splat_bits(0x7c00));
  vu result = select((vi)(rest < 0x38800000), subnormal, normal);
  return narrow_bits(select((vi)(rest >= 0x47800000), huge, result) | sign);
}
#endif

INLINE vf load(const float* p) { return read<vf>(p); }
template <class T>
INLINE vf load(const T* p) {
  return widen(read<vh>(p), T{});
}
INLINE void store(float* p, vf v) { write(p, v); }
template <class T>
INLINE void store(T* p, vf v) {
  write(p, narrow(v, T{}));
}

// The first n of W values, n < W; zeros follow. Reads nothing beyond them.
template <class T>
INLINE vf load(const T* p, int64_t n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (is_float<T>) {
    return (vf)_mm512_maskz_loadu_ps((1u << n) - 1, p);
  } else {
    return widen((vh)_mm256_maskz_loadu_epi16((1u << n) - 1, p), T{});
  }
#else
  T values[W] = {};
  for (int64_t i = 0; i < n; ++i) {
    values[i] = p[i];
  }
  return load(values);
#endif
}

// The same, followed by `rest`.
template <class T>
INLINE vf load_or(const T* p, int64_t n, float rest) {
  vf value = load(p, n);
  for (int64_t i = n; i < W; ++i) {
    value[i] = rest;
  }
  return value;
}

// Writes the first n of W values, n < W.
template <class T>
INLINE void store(T* p, vf v, int64_t n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  if constexpr (is_float<T>) {
    _mm512_mask_storeu_ps(p, (1u << n) - 1, (__m512)v);
  } else {
    _mm256_mask_storeu_epi16(p, (1u << n) - 1, (__m256i)narrow(v, T{}));
  }
#else
  T values[W];
  store(values, v);
  for (int64_t i = 0; i < n; ++i) {
    p[i] = values[i];
  }
#endif
}

INLINE float to_float(float x) { return x; }
INLINE float to_float(bfloat x) {
  uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  return read<float>(&bits);
}
#if defined(__F16C__)
INLINE float to_float(half x) { return _cvtsh_ss(x.bits); }
#else
INLINE float to_float(half x) { return load(&x, 1)[0]; }
#endif

// All W values joined by f, which takes two vectors of any length.
template <class F>
INLINE float fold(vf v, const F& f) {
#if defined(__AVX512F__)
  auto eight = f(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                 __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
#elif defined(__AVX2__)
  vf eight = v;
#endif
#if defined(__AVX2__)
  auto four = f(__builtin_shufflevector(eight, eight, 0, 1, 2, 3),
                __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
#else
  vf four = v;
#endif
  auto two = f(four, __builtin_shufflevector(four, four, 2, 3, 0, 1));
  return f(two, __builtin_shufflevector(two, two, 1, 0, 3, 2))[0];
}

INLINE float sum(vf v) {
  return fold(v, [](auto a, auto b) INLINE_LAMBDA { return a + b; });
}

INLINE float largest(vf v) {
  return fold(v, [](auto a, auto b) INLINE_LAMBDA { return a > b ? a : b; });
}

// Calls f with a value of the C++ type that `type` names.
template <class F>
INLINE void with_type(Type type, const F& f) {
  if (type == Type::f32) {
    f(float{});
  } else if (type == Type::f16) {
    f(half{});
  } else {
    f(bfloat{});
  }
}

}  // namespace torchmlx::ISA
