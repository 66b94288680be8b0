// metal_simdgroup_matrix: 8x8 matrices spread over a simdgroup, two elements a lane.
//
// The specification leaves the spread open. This one is what Apple's GPUs do and what published
// kernels (MLX's steel, llama.cpp) rely on when they use thread_elements().
#pragma once
#pragma clang system_header
#include "sim/simdgroup.h"

namespace metal {

// Where lane `lane` holds its two elements: (row, column) and (row, column + 1).
SIM_INLINE constexpr ushort2 simdgroup_matrix_place(int lane) {
  ushort2 place{};
  place[0] = static_cast<ushort>((lane / 4 & 4) + lane / 2 % 4);
  place[1] = static_cast<ushort>((lane / 4 & 2) * 2 + lane % 2 * 2);
  return place;
}
SIM_INLINE constexpr int simdgroup_matrix_lane(int row, int column) {
  return (row & 4) * 4 + (column & 4) * 2 + (row & 3) * 2 + (column >> 1 & 1);
}

template <typename T, int COLUMNS, int ROWS>
struct simdgroup_matrix {
  static_assert(COLUMNS == 8 && ROWS == 8, "Metal has 8x8 only");
  vec<T, 2> elements;

  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) : elements{} {
    const ushort2 place = simdgroup_matrix_place(SIM_LANE);
    elements[0] = place[0] == place[1] ? diagonal : T(0);
    elements[1] = place[0] == place[1] + 1 ? diagonal : T(0);
  }
  vec<T, 2>& thread_elements() { return elements; }
  const vec<T, 2>& thread_elements() const { return elements; }
};

typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <typename T, int COLUMNS, int ROWS = COLUMNS>
SIM_INLINE simdgroup_matrix<T, COLUMNS, ROWS> make_filled_simdgroup_matrix(
    typename std::common_type<T>::type value) {
  simdgroup_matrix<T, COLUMNS, ROWS> result;
  result.elements[0] = result.elements[1] = value;
  return result;
}

// Every lane moves its own elements; `stride` counts elements from row to row.
template <typename T, typename Pointer>
SIM_INLINE void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& d, const Pointer* source, ulong stride = 8, ulong2 origin = 0ul,
    bool transpose = false) {
  const ushort2 place = simdgroup_matrix_place(SIM_LANE);
  const ulong row = place[0], column = place[1], x = origin[0], y = origin[1];
  for (ulong j = 0; j < 2; j++)
    d.elements[j] = transpose ? source[(y + column + j) * stride + x + row]
                              : source[(y + row) * stride + x + column + j];
}
template <typename T, typename Pointer>
SIM_INLINE void simdgroup_store(
    const simdgroup_matrix<T, 8, 8>& d, Pointer* target, ulong stride = 8, ulong2 origin = 0ul,
    bool transpose = false) {
  const ushort2 place = simdgroup_matrix_place(SIM_LANE);
  const ulong row = place[0], column = place[1], x = origin[0], y = origin[1];
  for (ulong j = 0; j < 2; j++)
    (transpose ? target[(y + column + j) * stride + x + row]
               : target[(y + row) * stride + x + column + j]) = d.elements[j];
}

// d = a b + c, accumulated in float.
template <typename D, typename A, typename B, typename C>
SIM_UNCHECKED void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
    const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c, SIM_SITE) {
  struct Factors {
    A a[2];
    B b[2];
  };
  const Factors mine = {{a.elements[0], a.elements[1]}, {b.elements[0], b.elements[1]}};
  const sim::Exchange* all = sim::sim_exchange(
      &mine, sizeof mine, site, "simdgroup_multiply_accumulate", sim::ALL_LANES);
  const ushort2 place = simdgroup_matrix_place(SIM_LANE);
  const int row = place[0], column = place[1];
  float sums[2] = {static_cast<float>(c.elements[0]), static_cast<float>(c.elements[1])};
  for (int k = 0; k < 8; k++) {
    const Factors& left =
        reinterpret_cast<const Factors&>(all->slots[simdgroup_matrix_lane(row, k)]);
    const Factors& right =
        reinterpret_cast<const Factors&>(all->slots[simdgroup_matrix_lane(k, column)]);
    const float factor = static_cast<float>(left.a[k & 1]);
    sums[0] += factor * static_cast<float>(right.b[0]);
    sums[1] += factor * static_cast<float>(right.b[1]);
  }
  d.elements[0] = static_cast<D>(sums[0]);
  d.elements[1] = static_cast<D>(sums[1]);
}
template <typename D, typename A, typename B>
SIM_INLINE void simdgroup_multiply(
    simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
    const simdgroup_matrix<B, 8, 8>& b, SIM_SITE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<float, 8>(0.0f), site);
}

}  // namespace metal
