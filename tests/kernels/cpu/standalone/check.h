// What the checks share: arrays of every type, values in double, and a count of what differs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernel.h"
#include "runtime/isa.h"
#include "runtime/pool.h"

// Checks of a file's kernels on the instruction set and threads in use.
void check_dense();
void check_few_bits();
void check_images();
void check_sequences();

using namespace torchmlx;
using Doubles = std::vector<double>;

inline int faults = 0;

inline void expect(bool good, const std::string& what) {
  if (!good) {
    ++faults;
    std::printf("%s, %d threads: %s\n", instruction_set(), threads(), what.c_str());
  }
}

inline constexpr Type TYPES[] = {Type::f32, Type::f16, Type::bf16};
inline const char* name_of(Type type) {
  return type == Type::f32 ? "f32" : type == Type::f16 ? "f16" : "bf16";
}
// A unit in the last place of 1.
inline double epsilon(Type type) {
  return type == Type::f32 ? 0x1p-23 : type == Type::f16 ? 0x1p-10 : 0x1p-7;
}

inline double value_of(uint16_t bits, Type type) {
  if (type == Type::f16) {
    int exponent = bits >> 10 & 31, digits = bits & 1023;
    double size = exponent ? std::ldexp(1024 + digits, exponent - 25) : std::ldexp(digits, -24);
    return bits >> 15 ? -size : size;
  }
  uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// The nearest value's bits; x is far below the largest.
inline uint16_t rounded(double x, Type type) {
  if (type == Type::f16) {
    int exponent = std::max(x == 0 ? -14 : std::ilogb(x), -14);
    int digits = static_cast<int>(std::nearbyint(std::ldexp(std::abs(x), 10 - exponent)));
    // A normal number's first digit adds one to the exponent.
    return static_cast<uint16_t>((x < 0) << 15 | (((exponent + 14) << 10) + digits));
  }
  float value = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Values of a type in memory of exactly their size, so that a step beyond it is seen.
class Array {
 public:
  Array(Type type, size_t count) : type_(type), bytes_(count * (type == Type::f32 ? 4 : 2)) {}

  static Array random(Type type, size_t count, unsigned seed) {
    Array x(type, count);
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < count; ++i) {
      x.set(i, normal(generator));
    }
    return x;
  }

  void* data() { return bytes_.data(); }
  size_t count() const { return bytes_.size() / (type_ == Type::f32 ? 4 : 2); }
  double get(size_t i) const {
    if (type_ == Type::f32) {
      float value;
      std::memcpy(&value, bytes_.data() + 4 * i, 4);
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, bytes_.data() + 2 * i, 2);
    return value_of(bits, type_);
  }
  void set(size_t i, double x) {
    if (type_ == Type::f32) {
      float value = static_cast<float>(x);
      std::memcpy(bytes_.data() + 4 * i, &value, 4);
    } else {
      uint16_t bits = rounded(x, type_);
      std::memcpy(bytes_.data() + 2 * i, &bits, 2);
    }
  }

  // Within some units of the larger of 1 and the wanted value.
  void compare(const Doubles& want, double units, const std::string& what) const {
    for (size_t i = 0; i < want.size(); ++i) {
      double limit = units * epsilon(type_) * std::max(1.0, std::abs(want[i]));
      if (!(std::abs(get(i) - want[i]) <= limit)) {
        expect(false, what + " " + name_of(type_) + ": [" + std::to_string(i) + "] is " +
                          std::to_string(get(i)) + ", not " + std::to_string(want[i]));
        return;
      }
    }
  }

 private:
  Type type_;
  std::vector<unsigned char> bytes_;
};

// Codes of e4m3 between -2 and 2, or any other bytes.
inline std::vector<uint8_t> random_bytes(size_t count, unsigned seed, bool codes) {
  std::mt19937 generator(seed);
  std::vector<uint8_t> bytes(count);
  for (uint8_t& byte : bytes) {
    byte = static_cast<uint8_t>(generator() & (codes ? 0xbf : 0xff));
  }
  return bytes;
}

inline double value_of_e4m3(uint8_t code) {
  int exponent = code >> 3 & 15, digits = code & 7;
  double size = exponent ? std::ldexp(8 + digits, exponent - 10) : std::ldexp(digits, -9);
  return code & 0x80 ? -size : size;
}

// Float sums of k products, then one rounding, in units of `type`.
inline double units_of_sum(Type type, int64_t k) {
  return 1.0 + 0x1p-21 / epsilon(type) * std::sqrt(static_cast<double>(k)) * 4.0;
}
