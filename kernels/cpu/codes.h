// e4m3 codes to floats and back, with the bits of torch.float8_e4m3fn.
#pragma once

#include "simd.h"

namespace torchmlx::ISA {

typedef uint8_t vb __attribute__((vector_size(W)));

// The first n of W codes, n <= W; zeros follow. Reads nothing beyond them.
INLINE vb load_codes(const uint8_t* p, int64_t n) {
  if (n == W) {
    return read<vb>(p);
  }
  vb codes = {};
  memcpy(&codes, p, n);
  return codes;
}

INLINE vu widen_bytes(vb bytes) {
#if defined(__AVX512F__)
  return (vu)_mm512_cvtepu8_epi32((__m128i)bytes);
#else
  return __builtin_convertvector(bytes, vu);
#endif
}

// Values of codes. Subnormal ones become normal; 0x7f and 0xff are NaN.
INLINE vf widen_codes(vb codes) {
  vu wide = widen_bytes(codes);
  vu sign = (wide & 0x80) << 24, rest = wide & 0x7f;
  // The exponent moves from bias 7 to 127; below the first of 8 normal steps codes are multiples of
  // 2^-9, and no subnormal float is multiplied, which some processors take long for.
  vf small = __builtin_convertvector((vi)rest, vf) * 0x1p-9f;
  vu value = select((vi)(rest < 8), float_to_bits(small), (rest << 20) + (120u << 23));
  return bits_to_float(select((vi)(rest == 0x7f), splat_bits(0x7fc00000), value) | sign);
}

// Codes of values: to nearest, ties to even, saturating at 448, infinities too; NaN keeps its sign.
INLINE vb narrow_codes(vf x) {
  vu bits = float_to_bits(x), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
  // Half a step rounds a normal, as a carry into the exponent is right.
  vu normal = (rest + 0x7ffff + (rest >> 20 & 1)) - (120u << 23);
  // Adding 2^14 puts multiples of 2^-9, which those below 2^-6 are, at the end of the float.
  vu subnormal = float_to_bits(bits_to_float(rest) + 0x1p14f) - 0x46800000u;
  vu code = select((vi)(rest < 0x3c800000), subnormal, normal >> 20);
  code = select((vi)(rest >= 0x43e00000), splat_bits(0x7e), code);
  code = select((vi)(rest > 0x7f800000), splat_bits(0x7f), code) | sign;
#if defined(__AVX512F__)
  return (vb)_mm512_cvtepi32_epi8((__m512i)code);
#else
  return __builtin_convertvector(code, vb);
#endif
}

// Writes the first n of W codes, n <= W.
INLINE void store_codes(uint8_t* p, vb codes, int64_t n) {
  if (n == W) {
    write(p, codes);
  } else {
    memcpy(p, &codes, n);
  }
}

}  // namespace torchmlx::ISA
