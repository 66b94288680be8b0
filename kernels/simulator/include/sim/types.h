// Names of vector, packed and matrix types, and as_type.
#pragma once
#pragma clang system_header
#ifdef SIM_SYNTAX
#include "sim/vector_syntax.h"
#else
#include "sim/vector.h"
#endif

namespace metal {

using ::bfloat;
using ::half;
using ::uchar;
using ::uint;
using ::ulong;
using ::ushort;

// Components without padding or vector alignment, by number or by name.
template <typename T, int N>
struct Packed;
template <typename T>
struct Packed<T, 2> {
  union {
    T data[2];
    struct {
      T x, y;
    };
  };
};
template <typename T>
struct Packed<T, 3> {
  union {
    T data[3];
    struct {
      T x, y, z;
    };
  };
};
template <typename T>
struct Packed<T, 4> {
  union {
    T data[4];
    struct {
      T x, y, z, w;
    };
  };
};
template <typename T, int N>
struct packed_vec : Packed<T, N> {
  using Packed<T, N>::data;
  packed_vec() = default;
  constexpr packed_vec(vec<T, N> v) : Packed<T, N>{} {
    for (int i = 0; i < N; i++) data[i] = v[i];
  }
  constexpr operator vec<T, N>() const {
    vec<T, N> v{};
    for (int i = 0; i < N; i++) v[i] = data[i];
    return v;
  }
  constexpr T& operator[](int i) { return data[i]; }
  constexpr const T& operator[](int i) const { return data[i]; }
};

#define SIM_VECTORS(T)                                                                    \
  typedef vec<T, 2> T##2;                                                                 \
  typedef vec<T, 3> T##3;                                                                 \
  typedef vec<T, 4> T##4;
SIM_VECTORS(bool)
#define SIM_ALL_VECTORS(T)                                                                \
  SIM_VECTORS(T)                                                                          \
  typedef packed_vec<T, 2> packed_##T##2;                                                 \
  typedef packed_vec<T, 3> packed_##T##3;                                                 \
  typedef packed_vec<T, 4> packed_##T##4;
SIM_ALL_VECTORS(char)
SIM_ALL_VECTORS(uchar)
SIM_ALL_VECTORS(short)
SIM_ALL_VECTORS(ushort)
SIM_ALL_VECTORS(int)
SIM_ALL_VECTORS(uint)
SIM_ALL_VECTORS(long)
SIM_ALL_VECTORS(ulong)
SIM_ALL_VECTORS(half)
SIM_ALL_VECTORS(float)
SIM_ALL_VECTORS(bfloat)
#undef SIM_ALL_VECTORS
#undef SIM_VECTORS

// Columns of vectors.
template <typename T, int COLUMNS, int ROWS>
struct matrix {
  vec<T, ROWS> columns[COLUMNS];
  matrix() = default;
  constexpr explicit matrix(T diagonal) : columns{} {
    for (int i = 0; i < COLUMNS && i < ROWS; i++) columns[i][i] = diagonal;
  }
  template <typename... V, typename = enable_if_t<sizeof...(V) == COLUMNS>>
  constexpr matrix(V... values) : columns{values...} {}
  constexpr vec<T, ROWS>& operator[](int i) { return columns[i]; }
  constexpr const vec<T, ROWS>& operator[](int i) const { return columns[i]; }
};

#define SIM_MATRICES(T)                                                                   \
  typedef matrix<T, 2, 2> T##2x2;                                                         \
  typedef matrix<T, 2, 3> T##2x3;                                                         \
  typedef matrix<T, 2, 4> T##2x4;                                                         \
  typedef matrix<T, 3, 2> T##3x2;                                                         \
  typedef matrix<T, 3, 3> T##3x3;                                                         \
  typedef matrix<T, 3, 4> T##3x4;                                                         \
  typedef matrix<T, 4, 2> T##4x2;                                                         \
  typedef matrix<T, 4, 3> T##4x3;                                                         \
  typedef matrix<T, 4, 4> T##4x4;
SIM_MATRICES(float)
SIM_MATRICES(half)
#undef SIM_MATRICES

template <typename T, int C, int R>
constexpr vec<T, R> operator*(const matrix<T, C, R>& m, const vec<T, C>& v) {
  vec<T, R> sum = m[0] * v[0];
  for (int i = 1; i < C; i++) sum += m[i] * v[i];
  return sum;
}
template <typename T, int C, int R>
constexpr matrix<T, C, R> operator*(matrix<T, C, R> m, T scale) {
  for (int i = 0; i < C; i++) m[i] *= scale;
  return m;
}
template <typename T, int C, int R>
constexpr matrix<T, C, R> operator*(T scale, const matrix<T, C, R>& m) {
  return m * scale;
}

template <typename To, typename From>
SIM_INLINE To as_type(From value) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To result;
  __builtin_memcpy(&result, &value, sizeof result);
  return result;
}

template <typename T, size_t N>
struct array {
  T data[N];
  constexpr T& operator[](size_t i) { return data[i]; }
  constexpr const T& operator[](size_t i) const { return data[i]; }
  static constexpr size_t size() { return N; }
};

template <typename A, typename B>
struct pair {
  A first;
  B second;
};

template <typename T>
struct uniform {
  T value;
  constexpr uniform(T x) : value(x) {}
  constexpr operator T() const { return value; }
};
template <typename T>
constexpr uniform<T> make_uniform(T x) {
  return uniform<T>(x);
}

}  // namespace metal
