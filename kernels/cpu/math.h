// Functions of vectors of floats.
#pragma once

#include "simd.h"

namespace torchmlx::ISA {

// e^x within 2 units in the last place; 0 below the smallest float, inf above the largest, NaN for
// NaN. x = n ln 2 + r with |r| <= ln 2 / 2, e^r by its Taylor series to r^7, whose next term is
// below 2^-25.
INLINE vf exponential(vf x) {
  vf bounded = select(x < -105.0f, splat(-105.0f), x);
  bounded = select(bounded > 89.0f, splat(89.0f), bounded);
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
  vf shifted = bounded * 1.44269504f + 0x1.8p23f;
  vf n = shifted - 0x1.8p23f;
  vf r = bounded - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vf y = splat(1.0f / 5040.0f);
  y = y * r + 1.0f / 720.0f;
  y = y * r + 1.0f / 120.0f;
  y = y * r + 1.0f / 24.0f;
  y = y * r + 1.0f / 6.0f;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  // 2^n in two factors, so that subnormal results and those near the largest float come out.
  vi power = (vi)shifted - 0x4b400000;
  vi half = power >> 1;
  vf low = (vf)((half + 127) << 23), high = (vf)((power - half + 127) << 23);
  return y * low * high;
}

// As the C library's; one value at a time where few are needed.
INLINE float logarithm(float x) { return __builtin_logf(x); }

}  // namespace torchmlx::ISA
