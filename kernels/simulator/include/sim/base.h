// Words, scalar types and literals of the Metal Shading Language, and the runtime's interface.
//
// SIM_SYNTAX turns the address spaces into real ones, for a compile that only checks. Otherwise
// they are empty: one thread of the host runs everything in one space.
#pragma once
#pragma clang system_header
#include <stddef.h>
#include <stdint.h>

#include <type_traits>

#include "sim/runtime.h"

#define __METAL__ 1
#define __METAL_VERSION__ 310

#ifdef SIM_SYNTAX
#define device __attribute__((address_space(1)))
#define constant const __attribute__((address_space(2)))
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant const
#define threadgroup
#endif
#define thread
#define METAL_FUNC inline __attribute__((always_inline))
#define METAL_CONST constant

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef __bf16 bfloat;

constexpr half operator""h(long double x) { return static_cast<half>(x); }
constexpr half operator""h(unsigned long long x) { return static_cast<half>(x); }
constexpr bfloat operator""bf(long double x) { return static_cast<bfloat>(static_cast<float>(x)); }

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF INFINITY
#define MAXFLOAT 3.402823466e+38f
#define FLT_MAX MAXFLOAT
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#define MAXHALF 65504.0h
#define HALF_MAX MAXHALF
#define HALF_MIN 6.103515625e-05h
#define HALF_EPSILON 9.765625e-04h
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define M_E_F 2.71828182845904523536f
#define M_LOG2E_F 1.44269504088896340736f
#define M_LOG10E_F 0.434294481903251827651f
#define M_LN2_F 0.693147180559945309417f
#define M_LN10_F 2.30258509299404568402f
#define M_PI_F 3.14159265358979323846f
#define M_PI_2_F 1.57079632679489661923f
#define M_PI_4_F 0.785398163397448309616f
#define M_1_PI_F 0.318309886183790671538f
#define M_2_PI_F 0.636619772367581343076f
#define M_2_SQRTPI_F 1.12837916709551257390f
#define M_SQRT2_F 1.41421356237309504880f
#define M_SQRT1_2_F 0.707106781186547524401f

#define SIM_INLINE inline __attribute__((always_inline))
// Reads the runtime's own memory, which no kernel may be blamed for.
#define SIM_UNCHECKED __attribute__((no_sanitize("thread", "undefined"), noinline))
// The place of the call in the kernel, as a default argument.
#define SIM_SITE sim::Site site = {__builtin_LINE(), __builtin_COLUMN(), __builtin_FILE()}
