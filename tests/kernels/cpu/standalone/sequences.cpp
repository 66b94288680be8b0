// What goes along time: the gated delta rule and its convolution, positions; and the router.
#include "causal_conv1d.h"
#include "check.h"
#include "gated_delta.h"
#include "rope.h"
#include "router.h"

namespace {

// Two key heads, three value heads each; the state before is there or zero.
void check_gated_delta(Type type, int64_t tokens, int64_t dk, int64_t dv, bool state) {
  constexpr int64_t batch = 2, key_heads = 2, heads = 6;
  Array q = Array::random(type, batch * tokens * key_heads * dk, 50);
  Array k = Array::random(type, batch * tokens * key_heads * dk, 51);
  Array v = Array::random(type, batch * tokens * heads * dv, 52);
  Array g(Type::f32, batch * tokens * heads), beta(type, batch * tokens * heads);
  for (int64_t i = 0; i < batch * tokens * heads; ++i) {
    g.set(i, -0.05 * static_cast<double>(i % 9));
    beta.set(i, 0.1 * static_cast<double>(i % 10));
  }
  Array held = Array::random(Type::f32, batch * heads * dk * dv, 53);
  Array out(type, batch * tokens * heads * dv), next(Type::f32, batch * heads * dk * dv);
  GatedDelta p{};
  p.type = type, p.g_type = Type::f32, p.beta_type = type;
  p.q = q.data(), p.k = k.data(), p.v = v.data(), p.g = g.data(), p.beta = beta.data();
  p.state = state ? static_cast<const float*>(held.data()) : nullptr;
  p.out = out.data(), p.next = static_cast<float*>(next.data());
  int64_t* strides[3] = {p.q_strides, p.k_strides, p.v_strides};
  for (int i = 0; i < 3; ++i) {
    strides[i][2] = i < 2 ? dk : dv;
    strides[i][1] = strides[i][2] * (i < 2 ? key_heads : heads);
    strides[i][0] = strides[i][1] * tokens;
  }
  p.batch = batch, p.tokens = tokens, p.key_heads = key_heads, p.heads = heads;
  p.dk = dk, p.dv = dv, p.normalise = true, p.scale = 0.5f;
  kernels::gated_delta(p);
  Doubles want(batch * tokens * heads * dv), after(batch * heads * dk * dv);
  for (int64_t i = 0; i < batch * heads; ++i) {
    int64_t b = i / heads, h = i % heads;
    double* s = after.data() + i * dk * dv;
    for (int64_t j = 0; state && j < dk * dv; ++j) {
      s[j] = held.get(i * dk * dv + j);
    }
    for (int64_t t = 0; t < tokens; ++t) {
      int64_t key = ((b * tokens + t) * key_heads + h / 3) * dk, gate = (b * tokens + t) * heads + h;
      double q_size = 1e-6, k_size = 1e-6;
      for (int64_t r = 0; r < dk; ++r) {
        q_size += q.get(key + r) * q.get(key + r);
        k_size += k.get(key + r) * k.get(key + r);
      }
      for (int64_t c = 0; c < dv; ++c) {
        double known = 0, o = 0;
        for (int64_t r = 0; r < dk; ++r) {
          s[r * dv + c] *= std::exp(g.get(gate));
          known += s[r * dv + c] * k.get(key + r) / std::sqrt(k_size);
        }
        double delta = beta.get(gate) * (v.get(gate * dv + c) - known);
        for (int64_t r = 0; r < dk; ++r) {
          s[r * dv + c] += delta * k.get(key + r) / std::sqrt(k_size);
          o += s[r * dv + c] * q.get(key + r) / std::sqrt(q_size) * 0.5;
        }
        want[gate * dv + c] = o;
      }
    }
  }
  std::string name = "gated_delta " + std::to_string(tokens);
  out.compare(want, type == Type::f32 ? 64.0 : 2.0, name);
  next.compare(after, 64.0, name + ", the state");
}

void check_causal_conv1d(Type type, int64_t tokens, int64_t channels, int64_t taps, bool all) {
  constexpr int64_t batch = 2;
  int64_t kept = taps - 1;
  Array x = Array::random(type, batch * tokens * channels, 54);
  Array w = Array::random(type, channels * taps, 55), bias = Array::random(type, channels, 56);
  Array state = Array::random(type, batch * kept * channels, 57);
  Array out(type, batch * tokens * channels), next(type, batch * kept * channels);
  std::vector<int32_t> padding{1, 0};
  kernels::causal_conv1d({type, x.data(), w.data(), all ? state.data() : nullptr,
                          all ? bias.data() : nullptr, all ? padding.data() : nullptr, out.data(),
                          next.data(), {tokens * channels, channels}, batch, tokens, channels, taps,
                          all});
  auto input = [&](int64_t b, int64_t t, int64_t c) {
    if (t < 0) {
      return all ? state.get((b * kept + kept + t) * channels + c) : 0.0;
    }
    return all && t < padding[b] ? 0.0 : x.get((b * tokens + t) * channels + c);
  };
  Doubles want, after;
  for (int64_t i = 0; i < batch * tokens * channels; ++i) {
    int64_t b = i / (tokens * channels), t = i / channels % tokens, c = i % channels;
    double sum = all ? bias.get(c) : 0;
    for (int64_t j = 0; j < taps; ++j) {
      sum += w.get(c * taps + j) * input(b, t - kept + j, c);
    }
    want.push_back(all ? sum / (1 + std::exp(-sum)) : sum);
  }
  for (int64_t i = 0; i < batch * kept * channels; ++i) {
    int64_t b = i / (kept * channels), t = i / channels % kept, c = i % channels;
    after.push_back(input(b, tokens - kept + t, c));
  }
  out.compare(want, 8.0, "causal_conv1d " + std::to_string(taps));
  next.compare(after, 0.0, "causal_conv1d's state");
}

void check_router(Type type, int64_t rows, int64_t experts, int64_t k, bool normalise) {
  Array logits = Array::random(type, rows * experts, 58), weights(type, rows * k);
  std::vector<int32_t> indices(rows * k);
  kernels::router({type, logits.data(), weights.data(), indices.data(), rows, experts, k, normalise});
  Doubles want(rows * k);
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<int32_t> order(experts);
    double sum = 0, shares = 0;
    for (int64_t e = 0; e < experts; ++e) {
      order[e] = static_cast<int32_t>(e);
      sum += std::exp(logits.get(r * experts + e));
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits.get(r * experts + a) > logits.get(r * experts + b);
    });
    for (int64_t i = 0; i < k; ++i) {
      expect(indices[r * k + i] == order[i], "router's indices");
      want[r * k + i] = std::exp(logits.get(r * experts + order[i])) / sum;
      shares += want[r * k + i];
    }
    for (int64_t i = 0; i < k && normalise; ++i) {
      want[r * k + i] /= shares;
    }
  }
  weights.compare(want, 2.0, "router " + std::to_string(experts));
}

// Two sequences at their own positions, by frequencies or rows of tables; heads first or last.
void check_rope(Type type, int64_t tokens, int64_t dims, int64_t width, bool tables, bool last) {
  constexpr int64_t batch = 2, heads = 3;
  Array x = Array::random(type, batch * heads * tokens * dims, 60), out(type, x.count());
  Array cos = Array::random(Type::f32, 9 * width, 61), sin = Array::random(Type::f32, 9 * width, 62);
  Array frequencies(Type::f32, width / 2);
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < width / 2; ++i) {
    frequencies.set(i, 1.0 / static_cast<double>(1 + 3 * i));
  }
  for (int64_t i = 0; i < batch * tokens; ++i) {
    positions.push_back(static_cast<int32_t>(i * 5 % 9) - (tables ? i % 2 * 9 : 0));
  }
  int64_t token = last ? heads * dims : dims, head = last ? dims : tokens * dims;
  Rope p{};
  p.type = type, p.x = x.data(), p.out = out.data(), p.positions = positions.data();
  p.batch = batch, p.heads = heads, p.tokens = tokens, p.dims = dims, p.width = width;
  p.x_batch = p.out_batch = heads * tokens * dims;
  p.x_head = p.out_head = head, p.x_token = p.out_token = token;
  p.cos = tables ? static_cast<const float*>(cos.data()) : nullptr;
  p.sin = tables ? static_cast<const float*>(sin.data()) : nullptr;
  p.frequencies = tables ? nullptr : static_cast<const float*>(frequencies.data());
  p.batch_step = tokens, p.table = 9, p.scale = 1.5f, p.interleaved = last;
  kernels::rope(p);
  Doubles want(x.count());
  for (int64_t i = 0; i < batch * heads * tokens * dims; ++i) {
    int64_t b = i / (heads * tokens * dims), t = i / token % tokens, d = i % dims;
    t = last ? t : i / dims % tokens;
    int64_t position = positions[b * tokens + t], half = width / 2;
    if (d >= width) {
      want[i] = x.get(i);
      continue;
    }
    int64_t other = last ? d ^ 1 : d < half ? d + half : d - half, row = (position + 9) % 9;
    float angle = static_cast<float>(position) *
                  static_cast<float>(frequencies.get(last ? d / 2 : d % half));
    double c = tables ? cos.get(row * width + d) : 1.5 * std::cos(angle);
    double s = tables ? sin.get(row * width + d) : 1.5 * std::sin(angle);
    want[i] = x.get(i) * c + (d < other ? -s : s) * x.get(i - d + other);
  }
  out.compare(want, 4.0, "rope " + std::to_string(width));
}

}  // namespace

void check_sequences() {
  for (Type type : TYPES) {
    check_gated_delta(type, 1, 16, 32, true);
    check_gated_delta(type, 1, 128, 128, true);
    check_gated_delta(type, 11, 20, 33, true);
    check_gated_delta(type, 6, 7, 64, false);
    check_causal_conv1d(type, 1, 40, 4, true);
    check_causal_conv1d(type, 9, 33, 4, true);
    check_causal_conv1d(type, 3, 17, 8, false);
    check_router(type, 5, 37, 8, true);
    check_router(type, 40, 256, 8, false);
    check_rope(type, 1, 64, 64, false, false);
    check_rope(type, 5, 37, 34, false, true);
    check_rope(type, 4, 9, 6, true, false);
    check_rope(type, 70, 20, 18, true, true);
  }
}
