// Products of groups by the products of matrices: whole groups, or parts of them, for each thread.
#include "grouped_matmul.h"

#include "fp8_matmul.h"
#include "matmul.h"
#include "simd.h"

namespace torchmlx::ISA {
namespace {

// Not a slot of the products below.
enum { PARTS = 5 };

// Rows of a part: enough to be worth reading a group's weights again.
constexpr int64_t PART = 128;

struct Part {
  int64_t group, first, count;
};

struct Parts {
  Part* list;
  int64_t count, end;  // `end`: where the last group ends
};

// The groups that are not empty, cut into parts of at most `most`.
Parts parts_of(const int32_t* offs, int64_t groups, int64_t limit, int64_t most) {
  auto* list = static_cast<Part*>(scratch(PARTS, sizeof(Part) * (groups + limit / most + 1)));
  Parts parts{list, 0, 0};
  for (int64_t g = 0; g < groups; ++g) {
    int64_t end = min(offs[g], limit);
    for (int64_t first = parts.end; first < end; first += most) {
      list[parts.count++] = {g, first, min(most, end - first)};
    }
    parts.end = max(parts.end, end);
  }
  return parts;
}

// Many parts: whole ones for each thread; few: all threads on each.
template <class F>
void each(int64_t count, const F& compute) {
  auto all = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      compute(i);
    }
  };
  if (count >= 2 * threads()) {
    parallel(count, 1, all);
  } else {
    all(0, count);
  }
}

int64_t size_of(Type type) { return type == Type::f32 ? 4 : 2; }

const void* at(const void* p, Type type, int64_t elements) {
  return static_cast<const char*>(p) + elements * size_of(type);
}

void* at(void* p, Type type, int64_t elements) {
  return static_cast<char*>(p) + elements * size_of(type);
}

constexpr int64_t START = 0;

Matmul product(const GroupedMatmul& p) {
  return {p.type, p.a, p.b,   nullptr, p.out,      p.m, p.n,    p.k,
          p.a_row, p.a_k, p.b_k, p.b_column, 1, &START, &START};
}

void by_rows(const GroupedMatmul& p) {
  Parts parts = parts_of(p.offs, p.groups, p.m, PART);
  each(parts.count, [&](int64_t i) {
    const Part& part = parts.list[i];
    Matmul one = product(p);
    one.m = part.count;
    one.a = at(p.a, p.type, part.first * p.a_row);
    one.b = at(p.b, p.type, part.group * p.b_group);
    one.out = at(p.out, p.type, part.first * p.n);
    matmul(one);
  });
  memset(at(p.out, p.type, parts.end * p.n), 0, (p.m - parts.end) * p.n * size_of(p.type));
}

void by_inner(const GroupedMatmul& p) {
  each(p.groups, [&](int64_t g) {
    int64_t first = g ? max(0, min(p.offs[g - 1], p.k)) : 0;
    Matmul one = product(p);
    one.k = max(0, min(p.offs[g], p.k) - first);
    one.a = at(p.a, p.type, first * p.a_k);
    one.b = at(p.b, p.type, first * p.b_k);
    one.out = at(p.out, p.type, g * p.m * p.n);
    matmul(one);
  });
}

}  // namespace

void grouped_matmul(const GroupedMatmul& p) {
  if (p.inner) {
    by_inner(p);
  } else {
    by_rows(p);
  }
}

void fp8_grouped(const Fp8Grouped& p) {
  Parts parts = parts_of(p.offs, p.groups, p.m, PART);
  each(parts.count, [&](int64_t i) {
    const Part& part = parts.list[i];
    fp8_matmul({
        .type = p.type,
        .scale_type = p.scale_type,
        .x = at(p.x, p.type, part.first * p.x_row),
        .w = p.w + part.group * p.n * p.k,
        .scale = at(p.scale, p.scale_type, part.group * p.scale_group),
        .bias = nullptr,
        .out = at(p.out, p.type, part.first * p.n),
        .m = part.count,
        .n = p.n,
        .k = p.k,
        .x_row = p.x_row,
        .x_k = p.x_k,
        .w_row = p.k,
        .scales = p.scales,
        .scale_height = p.scale_height,
        .scale_row = p.scale_row,
        .scale_length = p.scale_length,
    });
  });
  memset(at(p.out, p.type, parts.end * p.n), 0, (p.m - parts.end) * p.n * size_of(p.type));
}

}  // namespace torchmlx::ISA
