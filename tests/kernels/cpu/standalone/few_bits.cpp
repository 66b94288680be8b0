// Products with weights in few bits, of groups, and of experts.
#include <limits>

#include "check.h"
#include "fp8_cast.h"
#include "fp8_matmul.h"
#include "grouped_matmul.h"
#include "moe_decode.h"
#include "quantized_matmul.h"
#include "scaled_matmul.h"

namespace {

constexpr int64_t ALL = std::numeric_limits<int64_t>::max();

// Square blocks of 64, each with a scale.
struct Blocks {
  int64_t rows, columns;
  Array scales;
  Blocks(int64_t n, int64_t k, int64_t experts)
      : rows((n + 63) / 64), columns((k + 63) / 64),
        scales(Array::random(Type::f32, experts * rows * columns, 20)) {}
  double at(int64_t expert, int64_t n, int64_t k) const {
    return scales.get((expert * rows + n / 64) * columns + k / 64);
  }
  int64_t count() const { return rows * columns; }
};

void check_fp8_matmul(Type type, int64_t m, int64_t n, int64_t k) {
  Array x = Array::random(type, m * k, 21), bias = Array::random(type, n, 22), out(type, m * n);
  std::vector<uint8_t> w = random_bytes(n * k, 23, true);
  Blocks blocks(n, k, 1);
  Fp8Matmul p{};
  p.type = type, p.scale_type = Type::f32, p.x = x.data(), p.w = w.data();
  p.scale = blocks.scales.data(), p.bias = bias.data(), p.out = out.data();
  p.m = m, p.n = n, p.k = k, p.x_row = k, p.x_k = 1, p.w_row = k;
  p.scales = blocks.count(), p.scale_height = 64, p.scale_row = blocks.columns;
  p.scale_length = 64;
  kernels::fp8_matmul(p);
  Doubles want(m * n);
  for (int64_t i = 0; i < m * n; ++i) {
    double sum = bias.get(i % n);
    for (int64_t j = 0; j < k; ++j) {
      sum += x.get(i / n * k + j) * value_of_e4m3(w[i % n * k + j]) * blocks.at(0, i % n, j);
    }
    want[i] = sum;
  }
  out.compare(want, units_of_sum(type, k), "fp8_matmul " + std::to_string(k));
}

// All codes to values and back; values between codes, beyond them, and NaN.
void check_fp8_cast(Type type) {
  std::vector<uint8_t> codes(256 + 3), back(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<uint8_t>(i);
  }
  Array values(type, codes.size());
  auto count = static_cast<int64_t>(codes.size());
  kernels::fp8_cast({type, false, codes.data(), values.data(), count});
  for (size_t i = 0; i < codes.size(); ++i) {
    bool nan = (codes[i] & 0x7f) == 0x7f;
    // A half's get() reads NaN as a large number.
    expect(nan ? !(std::abs(values.get(i)) <= 448) : values.get(i) == value_of_e4m3(codes[i]),
           "from e4m3: " + std::to_string(i));
  }
  kernels::fp8_cast({type, true, values.data(), back.data(), count});
  expect(back == codes, std::string("to e4m3 and back, ") + name_of(type));
  constexpr struct { double value; uint8_t code; } SOME[] = {
      {1.0625, 0x38}, {1.1875, 0x3a}, {464, 0x7e}, {6e4, 0x7e}, {-0x1p-10, 0x80}, {0x3p-10, 0x02}};
  Array x(type, std::size(SOME));
  for (size_t i = 0; i < std::size(SOME); ++i) {
    x.set(i, SOME[i].value);
  }
  kernels::fp8_cast({type, true, x.data(), back.data(), std::size(SOME)});
  for (size_t i = 0; i < std::size(SOME); ++i) {
    expect(back[i] == SOME[i].code, "to e4m3: " + std::to_string(SOME[i].value));
  }
}

// Scales of x: one, for each row, or for each row and 128 columns.
void check_scaled(Type type, int kind, int64_t m) {
  constexpr int64_t n = 70, k = 150, columns = 2;
  std::vector<uint8_t> x = random_bytes(m * k, 36, true), w = random_bytes(n * k, 37, true);
  int64_t row = kind == 0 ? 0 : kind == 1 ? 1 : columns;
  Array x_scale = Array::random(Type::f32, kind ? m * row : 1, 38);
  Array bias = Array::random(type, n, 39), out(type, m * n);
  Blocks blocks(n, k, 1);
  kernels::scaled_matmul({type, false, Type::f32, Type::f32, type, x.data(), w.data(),
                          x_scale.data(), blocks.scales.data(), bias.data(), out.data(), m, n, k,
                          row, 128, blocks.count(), 64, blocks.columns, 64});
  Doubles want(m * n);
  for (int64_t i = 0; i < m * n; ++i) {
    int64_t r = i / n, c = i % n;
    want[i] = bias.get(c);
    for (int64_t j = 0; j < k; ++j) {
      want[i] += value_of_e4m3(x[r * k + j]) * value_of_e4m3(w[c * k + j]) * blocks.at(0, c, j) *
                 x_scale.get(r * row + (kind == 2 ? j / 128 : 0));
    }
  }
  out.compare(want, units_of_sum(type, k), "scaled_matmul " + std::to_string(kind));
}

// A code's value; those of four bits lie two in a byte, the first in its low half.
double value_of_code(const QuantizedMatmul& p, int64_t index) {
  using Q = QuantizedMatmul;
  constexpr double E2M1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  bool four = p.codes == Q::integers4 || p.codes == Q::e2m1;
  int code = four ? p.w[index / 2] >> (index % 2 * 4) & 15 : p.w[index];
  if (p.codes == Q::e4m3) {
    return value_of_e4m3(static_cast<uint8_t>(code));
  }
  return p.codes == Q::e2m1 ? (code & 8 ? -1 : 1) * E2M1[code & 7] : code;
}

void check_quantized(Type type, QuantizedMatmul::Codes codes, int64_t m, int64_t n, int64_t k) {
  using Q = QuantizedMatmul;
  bool integers = codes == Q::integers4 || codes == Q::integers8;
  bool four = codes == Q::integers4 || codes == Q::e2m1;
  int64_t groups = n * k / 32;
  Array x = Array::random(type, m * k, 24), out(type, m * n);
  Array scales(Type::f32, groups), biases(Type::f32, groups);
  std::vector<uint8_t> w = random_bytes(n * k / (four ? 2 : 1), 25, codes == Q::e4m3);
  std::vector<uint8_t> exponents(groups);
  for (int64_t i = 0; i < groups; ++i) {
    exponents[i] = static_cast<uint8_t>(124 + i % 3);
    scales.set(i, 0.01 + 0.001 * static_cast<double>(i % 7));
    biases.set(i, 0.1 * static_cast<double>(i % 5) - 0.2);
  }
  Q p{};
  p.type = type, p.codes = codes, p.scaling = integers ? Q::floating : Q::e8m0;
  p.scale_type = Type::f32, p.x = x.data(), p.w = w.data(), p.out = out.data();
  p.scales = integers ? scales.data() : exponents.data();
  p.biases = integers ? biases.data() : nullptr;
  p.m = m, p.n = n, p.k = k, p.group = 32, p.x_row = k, p.x_k = 1;
  kernels::quantized_matmul(p);
  Doubles want(m * n);
  for (int64_t i = 0; i < m * n; ++i) {
    for (int64_t j = 0; j < k; ++j) {
      int64_t at = i % n * k + j, group = at / 32;
      double scale = integers ? scales.get(group) : std::ldexp(1.0, exponents[group] - 127);
      double weight = value_of_code(p, at) * scale + (integers ? biases.get(group) : 0);
      want[i] += x.get(i / n * k + j) * weight;
    }
  }
  // Integers and biases are summed apart, which cancels.
  out.compare(want, (integers ? 4 : 1) * units_of_sum(type, k),
              "quantized_matmul " + std::to_string(codes));
}

void check_grouped(Type type, bool inner) {
  constexpr int64_t groups = 3, m = 23, n = 17, k = 37;
  Array a = Array::random(type, m * k, 26), out(type, (inner ? groups : 1) * m * n);
  Array b = Array::random(type, (inner ? 1 : groups) * k * n, 27);
  std::vector<int32_t> offs = inner ? std::vector<int32_t>{5, 5, 36} : std::vector<int32_t>{2, 2, 20};
  GroupedMatmul p{type, inner, a.data(), b.data(), offs.data(), out.data(), groups, m, n, k,
                  k, 1, inner ? 0 : k * n, n, 1};
  kernels::grouped_matmul(p);
  Doubles want((inner ? groups : 1) * m * n);
  for (int64_t g = 0; g < groups; ++g) {
    int64_t begin = g ? offs[g - 1] : 0, end = offs[g];
    for (int64_t r = inner ? 0 : begin; r < (inner ? m : end); ++r) {
      for (int64_t c = 0; c < n; ++c) {
        for (int64_t i = inner ? begin : 0; i < (inner ? end : k); ++i) {
          want[((inner ? g * m : 0) + r) * n + c] +=
              a.get(r * k + i) * b.get((inner ? 0 : g * k * n) + i * n + c);
        }
      }
    }
  }
  out.compare(want, units_of_sum(type, k), inner ? "grouped_matmul, jagged k" : "grouped_matmul");
}

void check_fp8_grouped(Type type) {
  constexpr int64_t groups = 4, m = 21, n = 70, k = 130;
  Array x = Array::random(type, m * k, 28), out(type, m * n);
  std::vector<uint8_t> w = random_bytes(groups * n * k, 29, true);
  std::vector<int32_t> offs{1, 1, 15, 19};
  Blocks blocks(n, k, groups);
  Fp8Grouped p{type, Type::f32, x.data(), w.data(), blocks.scales.data(), offs.data(), out.data(),
               groups, m, n, k, k, 1, blocks.count(), blocks.count(), 64, blocks.columns, 64};
  kernels::fp8_grouped(p);
  Doubles want(m * n);
  for (int64_t r = 0; r < offs.back(); ++r) {
    int64_t g = 0;
    while (r >= offs[g]) {
      ++g;
    }
    for (int64_t c = 0; c < n; ++c) {
      for (int64_t i = 0; i < k; ++i) {
        want[r * n + c] +=
            x.get(r * k + i) * value_of_e4m3(w[(g * n + c) * k + i]) * blocks.at(g, c, i);
      }
    }
  }
  out.compare(want, units_of_sum(type, k), "fp8_grouped");
}

void check_moe(Type type, bool codes) {
  constexpr int64_t tokens = 3, slots = 2, experts = 4, inner = 70, k = 66;
  Array x = Array::random(type, tokens * k, 30), weights = Array::random(type, tokens * slots, 31);
  Array up = Array::random(type, experts * 2 * inner * k, 32);
  Array down = Array::random(type, experts * k * inner, 33), out(type, tokens * k);
  auto up_codes = random_bytes(experts * 2 * inner * k, 34, true);
  auto down_codes = random_bytes(experts * k * inner, 35, true);
  Blocks up_blocks(2 * inner, k, experts), down_blocks(k, inner, experts);
  std::vector<int32_t> indices{3, 0, 1, 1, 9, 2};  // there is no expert 9
  MoeDecode p{type, type, Type::f32, codes, x.data(),
              codes ? static_cast<void*>(up_codes.data()) : up.data(),
              codes ? static_cast<void*>(down_codes.data()) : down.data(),
              indices.data(), weights.data(), out.data(), tokens, slots, experts, inner, k,
              {nullptr, 0, 0, 2 * inner, 0, ALL}, {nullptr, 0, 0, k, 0, ALL}};
  if (codes) {
    p.up_scale = {up_blocks.scales.data(), experts * up_blocks.count(), up_blocks.count(), 64,
                  up_blocks.columns, 64};
    p.down_scale = {down_blocks.scales.data(), experts * down_blocks.count(), down_blocks.count(),
                    64, down_blocks.columns, 64};
  }
  kernels::moe_decode(p);
  auto up_at = [&](int64_t e, int64_t r, int64_t c) {
    int64_t at = (e * 2 * inner + r) * k + c;
    return codes ? value_of_e4m3(up_codes[at]) * up_blocks.at(e, r, c) : up.get(at);
  };
  auto down_at = [&](int64_t e, int64_t r, int64_t c) {
    int64_t at = (e * k + r) * inner + c;
    return codes ? value_of_e4m3(down_codes[at]) * down_blocks.at(e, r, c) : down.get(at);
  };
  Doubles want(tokens * k), sizes(tokens * k, 1.0);
  for (int64_t i = 0; i < tokens * slots; ++i) {
    int64_t t = i / slots, e = indices[i];
    for (int64_t j = 0; e < experts && j < inner; ++j) {
      double gate = 0, value = 0;
      for (int64_t c = 0; c < k; ++c) {
        gate += up_at(e, j, c) * x.get(t * k + c);
        value += up_at(e, inner + j, c) * x.get(t * k + c);
      }
      double hidden = gate / (1 + std::exp(-gate)) * value * weights.get(i);
      for (int64_t r = 0; r < k; ++r) {
        want[t * k + r] += hidden * down_at(e, r, j);
        sizes[t * k + r] += std::abs(hidden * down_at(e, r, j));
      }
    }
  }
  // Terms of either sign, of which half types round the hidden values: relative to their sizes.
  double units = type == Type::f32 ? 64.0 : 2.0;
  for (int64_t i = 0; i < tokens * k; ++i) {
    double error = std::abs(out.get(i) - want[i]);
    expect(error <= units * epsilon(type) * sizes[i],
           "moe_decode " + std::string(name_of(type)) + ": " + std::to_string(error));
  }
}

}  // namespace

void check_few_bits() {
  using Q = QuantizedMatmul;
  for (Type type : TYPES) {
    check_fp8_cast(type);
    for (int64_t m : {1, 3, 19, 27}) {
      check_fp8_matmul(type, m, 70, 130);
      check_fp8_matmul(type, m, 1, 5);
      check_fp8_matmul(type, m, 7, 0);
      for (int kind : {0, 1, 2}) {
        check_scaled(type, kind, m);
      }
      for (Q::Codes codes : {Q::integers4, Q::integers8, Q::e2m1, Q::e4m3}) {
        check_quantized(type, codes, m, 35, 160);
      }
    }
    // Several strips of tiles at a time.
    check_fp8_matmul(type, 41, 410, 130);
    check_quantized(type, Q::integers4, 41, 410, 160);
    check_quantized(type, Q::e4m3, 41, 410, 160);
    check_grouped(type, false);
    check_grouped(type, true);
    check_fp8_grouped(type);
    check_moe(type, false);
    check_moe(type, true);
  }
}
