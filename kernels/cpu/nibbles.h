// Codes of four bits, eight in a word: part j of a step has code j of each word, so that all codes
// of a lane belong to one group. And bytes that are integers.
#pragma once

#include "formats.h"

namespace torchmlx::ISA {

// Values of the 16 codes: integers, or e2m1 (two bits of exponent with bias 1, one of mantissa).
template <bool INTEGERS>
constexpr float NIBBLES[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
template <>
constexpr float NIBBLES<false>[16] = {0,     0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                      -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

template <class Words, bool INTEGERS>
struct Nibbles {
  using Code = uint8_t;
  static constexpr int64_t CODES = 2;
  static constexpr int PARTS = 8;
  static constexpr int64_t STEP = PARTS * W;
  static constexpr float FACTOR = 1.0f;
  static constexpr bool SPECIAL = false;
  INLINE constexpr int64_t place(int64_t i) { return i % 8 * W + i / 8; }
  INLINE void read(const uint8_t* p, vf (&parts)[PARTS]) {
    vu words = ISA::read<vu>(p);
#pragma GCC unroll 8
    for (int j = 0; j < PARTS; ++j) {
      parts[j] = value(words >> (4 * j));
    }
  }
  // Of the lowest four bits.
  INLINE vf value(vu code) {
#if defined(__AVX512F__)
    return (vf)_mm512_permutexvar_ps((__m512i)code, _mm512_loadu_ps(NIBBLES<INTEGERS>));
#else
    if constexpr (INTEGERS) {
      return __builtin_convertvector((vi)(code & 15), vf);
    } else {
      vu magnitude = code & 7, sign = code << 28 & 0x80000000u;
      vu small = select((vi)(magnitude == 1), splat_bits(0x3f000000), vu{});
      vu normal = (magnitude << 22) + 0x3f000000u;
      return bits_to_float(select((vi)(magnitude > 1), normal, small) | sign);
    }
#endif
  }
};

#if defined(__AVX512BF16__)
template <class Words, bool INTEGERS>
  requires(Words::VALUES == 2)
struct Nibbles<Words, INTEGERS> {
  using Code = uint8_t;
  static constexpr int64_t CODES = 2;
  static constexpr int PARTS = 4;
  static constexpr int64_t STEP = PARTS * 2 * W;
  static constexpr float FACTOR = 1.0f;
  static constexpr bool SPECIAL = false;
  INLINE constexpr int64_t place(int64_t i) { return i % 4 * 2 * W + i / 4; }
  INLINE void read(const uint8_t* p, vf (&parts)[PARTS]) {
    // All their values are bf16. The table is there twice, as five bits choose from it.
    __m512 floats = _mm512_loadu_ps(NIBBLES<INTEGERS>);
    __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)floats, 16));
    __m512i table = _mm512_broadcast_i64x4(halves), words = _mm512_loadu_si512(p);
    parts[0] = (vf)_mm512_permutexvar_epi16(words, table);
    parts[1] = (vf)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table);
    parts[2] = (vf)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), table);
    parts[3] = (vf)_mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), table);
  }
};
#endif

// Integers of eight bits.
template <class Words>
struct Integers {
  using Code = uint8_t;
  static constexpr int64_t CODES = 1;
  static constexpr int PARTS = 1;
  static constexpr int64_t STEP = W;
  static constexpr float FACTOR = 1.0f;
  static constexpr bool SPECIAL = false;
  INLINE constexpr int64_t place(int64_t i) { return i; }
  INLINE void read(const uint8_t* p, vf (&parts)[1]) {
#if defined(__AVX512F__)
    __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    parts[0] = (vf)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
#elif defined(__AVX2__)
    __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
    parts[0] = (vf)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes));
#else
    typedef uint8_t codes __attribute__((vector_size(W)));
    parts[0] = __builtin_convertvector(__builtin_convertvector(ISA::read<codes>(p), vi), vf);
#endif
  }
};

#if defined(__AVX512BF16__)
template <class Words>
  requires(Words::VALUES == 2)
struct Integers<Words> {
  using Code = uint8_t;
  static constexpr int64_t CODES = 1;
  static constexpr int PARTS = 1;
  static constexpr int64_t STEP = 2 * W;
  static constexpr float FACTOR = 1.0f;
  static constexpr bool SPECIAL = false;
  INLINE constexpr int64_t place(int64_t i) { return i; }
  // Eight bits are all that a bf16 has.
  INLINE void read(const uint8_t* p, vf (&parts)[1]) {
    vu pairs = widen_bits(ISA::read<vh>(p));
    vf low = __builtin_convertvector((vi)(pairs & 0xff), vf);
    vf high = __builtin_convertvector((vi)(pairs >> 8), vf);
    parts[0] = bits_to_float(float_to_bits(low) >> 16 | float_to_bits(high));
  }
};
#endif

}  // namespace torchmlx::ISA
