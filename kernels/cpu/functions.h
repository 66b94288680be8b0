// Functions of vectors of floats.
#pragma once

#include "simd.h"

namespace torchmlx::ISA {

// e^x within 2 units in the last place; 0 below the smallest float, inf above the largest, NaN for
// NaN. x = n ln 2 + r with |r| <= ln 2 / 2, e^r by a polynomial: 1 + r + r^2 times the Chebyshev fit
// of (e^r - 1 - r) / r^2, right to 1.1e-8.
INLINE vf exponential(vf x) {
  // The constant comes first: a NaN in x stays.
  vf bounded = smaller(splat(89.0f), larger(splat(-105.0f), x));
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits.
  vf shifted = bounded * 1.44269504f + 0x1.8p23f;
  vf n = shifted - 0x1.8p23f;
  vf r = bounded - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  vf y = splat(1.393368816934526e-3f);
  y = y * r + 8.363205008208752e-3f;
  y = y * r + 4.1666463017463684e-2f;
  y = y * r + 0.16666576266288757f;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)y, (__m512)n);
#else
  // 2^n in two factors, so that subnormal results and those near the largest float come out.
  vi power = (vi)shifted - 0x4b400000;
  vi half = power >> 1;
  vf low = (vf)((half + 127) << 23), high = (vf)((power - half + 127) << 23);
  return y * low * high;
#endif
}

// As the C library's; one value at a time where few are needed.
INLINE float logarithm(float x) { return __builtin_logf(x); }

}  // namespace torchmlx::ISA
