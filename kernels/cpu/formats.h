// Formats of stored weights: how a step of them becomes the vectors that dots multiply.
//
// A step is STEP weights along k, CODES of them in a Code, which become PARTS vectors of words (see
// pack.h). Lanes need not
// keep the order of memory, as long as x is arranged alike: weight `i` of a step is value place(i).
// What is read times FACTOR is the weight. SPECIAL formats have codes that must be looked for.
#pragma once

#include "pack.h"

namespace torchmlx::ISA {

typedef uint8_t bytes __attribute__((vector_size(4 * W)));
typedef int8_t signed_bytes __attribute__((vector_size(W)));
typedef int16_t signed_halves __attribute__((vector_size(2 * W)));

// Values of x's own type, or of one that is widened to float.
template <class T, class Words>
struct Plain {
  using Code = T;
  static constexpr int64_t CODES = 1;
  static constexpr int64_t STEP = W * Words::VALUES;
  static constexpr int PARTS = 1;
  static constexpr float FACTOR = 1.0f;
  static constexpr bool SPECIAL = false;
  INLINE constexpr int64_t place(int64_t i) { return i; }
  INLINE void read(const T* p, vf (&parts)[1]) { parts[0] = load_words<Words>(p, STEP); }
};

// e4m3 codes. As a half, a code is 256 times too small, subnormal ones included; a NaN reads as a
// number and is looked for apart.
template <class Words>
struct E4m3 {
  using Code = uint8_t;
  static constexpr int64_t CODES = 1;
  static constexpr int64_t STEP = W;
  static constexpr int PARTS = 1;
  static constexpr float FACTOR = 256.0f;
  static constexpr bool SPECIAL = true;
  INLINE constexpr int64_t place(int64_t i) { return i; }
  INLINE void read(const uint8_t* p, vf (&parts)[1]) {
    auto wide = __builtin_convertvector(ISA::read<signed_bytes>(p), signed_halves);
    parts[0] = widen((vh)((wide << 7) & int16_t(0xbf80)), half{});
  }
  INLINE bool is_nan(uint8_t code) { return (code & 0x7f) == 0x7f; }
  // Whether any of k codes is.
  INLINE bool has_nan(const uint8_t* p, int64_t k) {
    bytes worst = {};
    int64_t at = 0;
    for (; at + 4 * W <= k; at += 4 * W) {
      bytes magnitude = ISA::read<bytes>(p + at) & 0x7f;
      worst = worst > magnitude ? worst : magnitude;
    }
    uint64_t lanes[W / 2], found = 0;
    write(lanes, worst == 0x7f);
    for (uint64_t lane : lanes) {
      found |= lane;
    }
    for (; at < k; ++at) {
      found |= is_nan(p[at]);
    }
    return found;
  }
};

#if defined(__AVX512BF16__)
template <class Words>
  requires(Words::VALUES == 2)
struct E4m3<Words> {
  using Code = uint8_t;
  static constexpr int64_t CODES = 1;
  static constexpr int64_t STEP = 2 * W;
  static constexpr int PARTS = 1;
  static constexpr float FACTOR = 1.0f;
  static constexpr bool SPECIAL = false;
  INLINE constexpr int64_t place(int64_t i) { return i; }
  // Exponent and mantissa move to their places in a bf16. A table has what that gets wrong: NaN, in
  // its last entry, and the eight smallest, as subnormal numbers would count as zero. They are told
  // by one comparison, as all others lie between them.
  INLINE void read(const uint8_t* p, vf (&parts)[1]) {
    const __m512i table = _mm512_inserti32x4(
        _mm512_castsi128_si512(
            _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60)),
        _mm_set1_epi16(0x7fc0), 3);
    __m512i wide = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    __m512i moved = _mm512_and_si512(_mm512_slli_epi16(wide, 4), _mm512_set1_epi16(0x7f0));
    __m512i above = _mm512_sub_epi16(moved, _mm512_set1_epi16(0x80));
    __mmask32 listed = _mm512_cmpge_epu16_mask(above, _mm512_set1_epi16(0x770));
    __m512i value = _mm512_add_epi16(above, _mm512_set1_epi16(0x3c80));
    value = _mm512_mask_permutexvar_epi16(value, listed, wide, table);
    // With the sign of `wide`.
    parts[0] = (vf)_mm512_ternarylogic_epi32(value, wide, _mm512_set1_epi16(-0x8000), 0xf8);
  }
};
#endif

// The same codes where a stretch of one scale has at least 64 of them. Only there steps may be longer.
template <class Words>
struct LongE4m3 : E4m3<Words> {};

#if defined(__AVX512BF16__)
// The two bytes of a bf16 for each code without its sign.
struct E4m3Bytes {
  alignas(64) uint8_t low[128], high[128];
  constexpr E4m3Bytes() : low(), high() {
    for (int code = 0; code < 128; ++code) {
      int exponent = code >> 3, mantissa = code & 7;
      if (exponent == 0) {
        // A multiple of 2^-9: shifted until its first bit is the one that a normal number omits.
        exponent = 1;
        while (mantissa && mantissa < 8) {
          mantissa *= 2;
          --exponent;
        }
        mantissa &= 7;
      }
      int bits = (exponent + 120) << 7 | mantissa << 4;
      bits = code == 0 ? 0 : code == 127 ? 0x7fc0 : bits;
      low[code] = bits & 0xff;
      high[code] = bits >> 8;
    }
  }
};
inline constexpr E4m3Bytes E4M3_BYTES;

template <class Words>
  requires(Words::VALUES == 2)
struct LongE4m3<Words> {
  using Code = uint8_t;
  static constexpr int64_t CODES = 1;
  static constexpr int64_t STEP = 4 * W;
  static constexpr int PARTS = 2;
  static constexpr float FACTOR = 1.0f;
  static constexpr bool SPECIAL = false;
  // Bytes are joined within 16 of them: eight codes for either part.
  INLINE constexpr int64_t place(int64_t i) { return i / 8 % 2 * 2 * W + i / 16 * 8 + i % 8; }
  // Tables have all 128 values, so nothing is computed: a third of the instructions of a step of
  // E4m3.
  INLINE void read(const uint8_t* p, vf (&parts)[2]) {
    auto look_up = [](__m512i codes, const uint8_t* table) INLINE_LAMBDA {
      return _mm512_permutex2var_epi8(_mm512_load_si512(table), codes,
                                      _mm512_load_si512(table + 64));
    };
    __m512i codes = _mm512_loadu_si512(p);
    __m512i low = look_up(codes, E4M3_BYTES.low), high = look_up(codes, E4M3_BYTES.high);
    high = _mm512_ternarylogic_epi32(high, codes, _mm512_set1_epi8(-128), 0xf8);
    parts[0] = (vf)_mm512_unpacklo_epi8(low, high);
    parts[1] = (vf)_mm512_unpackhi_epi8(low, high);
  }
};
#endif

}  // namespace torchmlx::ISA
