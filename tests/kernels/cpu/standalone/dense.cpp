// Products, softmax, norms and attention.
#include <limits>

#include "attention.h"
#include "check.h"
#include "matmul.h"
#include "projections.h"
#include "rms_norm.h"
#include "softmax.h"
#include "swiglu.h"

namespace {

void check_matmul(Type type, int64_t m, int64_t n, int64_t k, bool rows_of_b, bool biased) {
  Array a = Array::random(type, m * k, 1), b = Array::random(type, n * k, 2);
  Array bias = Array::random(type, n, 3), out(type, m * n);
  int64_t start = 0;
  Matmul p{type, a.data(), b.data(), biased ? bias.data() : nullptr, out.data(), m, n, k,
           k, 1, rows_of_b ? n : 1, rows_of_b ? 1 : k, 1, &start, &start};
  kernels::matmul(p);
  Doubles want(m * n);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      double sum = biased ? bias.get(c) : 0.0;
      for (int64_t i = 0; i < k; ++i) {
        sum += a.get(r * k + i) * b.get(rows_of_b ? i * n + c : c * k + i);
      }
      want[r * n + c] = sum;
    }
  }
  // Float sums of k products, then one rounding.
  double units = 1.0 + 0x1p-21 / epsilon(type) * std::sqrt(static_cast<double>(k)) * 4.0;
  out.compare(want, units, "matmul " + std::to_string(m) + "x" + std::to_string(n) + "x" +
                               std::to_string(k) + (rows_of_b ? " rows" : " columns"));
}

// x [m, k] times w [n, k], into out.
Matmul linear(Array& x, Array& w, Array& out, Type type, int64_t m, int64_t n, int64_t k) {
  static const int64_t first[1] = {0};
  return {type, x.data(), w.data(), nullptr, out.data(), m, n, k, k, 1, 1, k, 1, first, first};
}

Doubles products(const Array& x, const Array& w, int64_t m, int64_t n, int64_t k) {
  Doubles want(m * n);
  for (int64_t i = 0; i < m * n * k; ++i) {
    want[i / k] += x.get(i / k / n * k + i % k) * w.get(i / k % n * k + i % k);
  }
  return want;
}

void check_projections(Type type, int64_t m, int64_t k) {
  Array x = Array::random(type, m * k, 70);
  int64_t n[3] = {70, 1, 33};
  Array w[3] = {Array::random(type, n[0] * k, 71), Array::random(type, n[1] * k, 72),
                Array::random(type, n[2] * k, 73)};
  Array out[3] = {Array(type, m * n[0]), Array(type, m * n[1]), Array(type, m * n[2])};
  Projections p;
  for (int i = 0; i < 3; ++i) {
    p.parts[i] = linear(x, w[i], out[i], type, m, n[i], k);
  }
  kernels::projections(p);
  for (int i = 0; i < 3; ++i) {
    out[i].compare(products(x, w[i], m, n[i], k), units_of_sum(type, k), "projections");
  }
}

void check_swiglu(Type type, int64_t m, int64_t n, int64_t k, bool few) {
  Array x = Array::random(type, m * k, 74), gate = Array::random(type, n * k, 75);
  Array up = Array::random(type, n * k, 76), out(type, m * n), between(type, m * n);
  kernels::swiglu({linear(x, gate, out, type, m, n, k), linear(x, up, between, type, m, n, k), few});
  Doubles want = products(x, gate, m, n, k), ups = products(x, up, m, n, k);
  for (size_t i = 0; i < want.size(); ++i) {
    want[i] = want[i] / (1 + std::exp(-want[i])) * ups[i];
  }
  // Sums of k products of about sqrt(k) each meet in a product.
  double units = (few ? 1.0 : 4.0) * units_of_sum(type, k) * std::sqrt(static_cast<double>(k));
  out.compare(want, units, "swiglu " + std::to_string(m));
}

void check_softmax(Type type, int64_t outer, int64_t n, int64_t inner, bool logarithm) {
  Array x = Array::random(type, outer * n * inner, 4), out(type, outer * n * inner);
  kernels::softmax({type, x.data(), out.data(), outer, n, inner, logarithm});
  Doubles want(outer * n * inner);
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t i = 0; i < inner; ++i) {
      auto at = [&](int64_t j) { return (o * n + j) * inner + i; };
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        sum += std::exp(x.get(at(j)));
      }
      for (int64_t j = 0; j < n; ++j) {
        double share = x.get(at(j)) - std::log(sum);
        want[at(j)] = logarithm ? share : std::exp(share);
      }
    }
  }
  out.compare(want, 2.0, (logarithm ? "log_softmax " : "softmax ") + std::to_string(n));
}

void check_rms_norm(Type type, int64_t rows, int64_t n, bool summed) {
  Array x = Array::random(type, rows * n, 5), residual = Array::random(type, rows * n, 6);
  Array weight = Array::random(Type::f32, n, 7), out(type, rows * n), total(type, rows * n);
  kernels::rms_norm({type, Type::f32, x.data(), weight.data(), summed ? residual.data() : nullptr,
                     out.data(), summed ? total.data() : nullptr, rows, n, 1e-5f, 1.0f});
  Doubles want(rows * n), sums(rows * n);
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (int64_t i = r * n; i < (r + 1) * n; ++i) {
      sums[i] = x.get(i) + residual.get(i);
      double h = summed ? total.get(i) : x.get(i);
      squares += h * h;
    }
    for (int64_t i = r * n; i < (r + 1) * n; ++i) {
      double h = summed ? total.get(i) : x.get(i);
      want[i] = h / std::sqrt(squares / static_cast<double>(n) + 1e-5) * (1 + weight.get(i - r * n));
    }
  }
  out.compare(want, 4.0, "rms_norm " + std::to_string(n));
  if (summed) {
    total.compare(sums, 1.0, "rms_norm's sum");
  }
}

struct Heads {
  int64_t batch, heads, kv_heads, queries, keys, d, values;
  bool causal, masked, limited;
};

// The weights of one query's keys, which a negative infinity hides.
Doubles weights(Doubles scores) {
  double sum = 0;
  for (double& score : scores) {
    score = std::exp(score);
    sum += score;
  }
  for (double& score : scores) {
    score = sum ? score / sum : 0;
  }
  return scores;
}

void check_attention(Type type, const Heads& h) {
  Array q = Array::random(type, h.batch * h.heads * h.queries * h.d, 8);
  Array k = Array::random(type, h.batch * h.kv_heads * h.keys * h.d, 9);
  Array v = Array::random(type, h.batch * h.kv_heads * h.keys * h.values, 10);
  Array mask = Array::random(Type::f32, h.queries * h.keys, 11);
  Array out(type, h.batch * h.heads * h.queries * h.values);
  std::vector<int> lengths(h.batch, static_cast<int>(h.keys - 2));
  Attention p{};
  p.type = type;
  p.q = q.data(), p.k = k.data(), p.v = v.data(), p.out = out.data();
  int64_t lengths_of[3] = {h.queries, h.keys, h.keys};
  int64_t widths[3] = {h.d, h.d, h.values}, counts[3] = {h.heads, h.kv_heads, h.kv_heads};
  int64_t* strides[3] = {p.q_strides, p.k_strides, p.v_strides};
  for (int i = 0; i < 3; ++i) {
    strides[i][2] = widths[i];
    strides[i][1] = widths[i] * lengths_of[i];
    strides[i][0] = strides[i][1] * counts[i];
  }
  p.batch = h.batch, p.heads = h.heads, p.kv_heads = h.kv_heads, p.queries = h.queries;
  p.keys = h.keys, p.d = h.d, p.values = h.values, p.causal = h.causal, p.scale = 0.3f;
  p.mask = h.masked ? mask.data() : nullptr;
  p.mask_type = Type::f32, p.mask_strides[2] = h.keys, p.mask_strides[3] = 1;
  p.lengths = h.limited ? lengths.data() : nullptr;
  kernels::attention(p);
  int64_t valid = h.limited ? h.keys - 2 : h.keys, shift = h.limited ? valid - h.queries : 0;
  Doubles want;
  for (int64_t row = 0; row < h.batch * h.heads; ++row) {
    int64_t kv = row / h.heads * h.kv_heads + row % h.heads / (h.heads / h.kv_heads);
    for (int64_t i = 0; i < h.queries; ++i) {
      Doubles scores(h.keys, -std::numeric_limits<double>::infinity());
      for (int64_t j = 0; j < (h.causal ? std::min(valid, i + shift + 1) : valid); ++j) {
        scores[j] = h.masked ? mask.get(i * h.keys + j) : 0;
        for (int64_t c = 0; c < h.d; ++c) {
          scores[j] += 0.3f * q.get((row * h.queries + i) * h.d + c) * k.get((kv * h.keys + j) * h.d + c);
        }
      }
      Doubles share = weights(scores);
      for (int64_t c = 0; c < h.values; ++c) {
        double sum = 0;
        for (int64_t j = 0; j < h.keys; ++j) {
          sum += share[j] * v.get((kv * h.keys + j) * h.values + c);
        }
        want.push_back(sum);
      }
    }
  }
  out.compare(want, type == Type::f32 ? 32.0 : 4.0, "attention " + std::to_string(h.keys));
}

}  // namespace

void check_dense() {
  for (Type type : TYPES) {
    for (int64_t m : {1, 3, 8, 9, 29}) {
      for (int64_t n : {1, 17, 70}) {
        for (int64_t k : {0, 1, 33, 129}) {
          check_matmul(type, m, n, k, m % 2, n % 2);
          check_matmul(type, m, n, k, n % 2, m % 2);
        }
      }
    }
    check_matmul(type, 40, 50, 1100, true, true);
    for (int64_t m : {1, 7, 9}) {
      check_projections(type, m, 37);
      check_swiglu(type, m, 133, 37, m < 9);
    }
    check_softmax(type, 3, 33, 1, false);
    check_softmax(type, 1, 300001, 1, false);
    check_softmax(type, 2, 19, 37, false);
    check_softmax(type, 3, 9000, 1, true);
    check_rms_norm(type, 5, 37, true);
    check_rms_norm(type, 1, 64, false);
    check_attention(type, {1, 4, 1, 1, 530, 16, 16, false, false, false});
    check_attention(type, {2, 3, 3, 5, 9, 7, 33, true, false, true});
    check_attention(type, {1, 2, 1, 40, 70, 33, 20, true, false, false});
    check_attention(type, {1, 2, 2, 20, 67, 8, 8, false, true, false});
    check_attention(type, {1, 2, 1, 300, 140, 40, 33, true, false, false});
  }
}
