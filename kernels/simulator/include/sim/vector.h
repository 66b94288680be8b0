// Vectors to run: a class, because clang's own vectors reinterpret the bits in `(float4)int4`.
//
// Swizzles are members of the same union as the components and convert to and from vectors.
#pragma once
#pragma clang system_header
#include "sim/traits.h"

namespace metal {

template <typename T, int N>
struct vec;

// Components I... of a vector whose storage this is.
template <typename T, int SIZE, int... I>
struct Swizzle {
  T data[SIZE];
  using Vector = vec<T, sizeof...(I)>;

  SIM_INLINE operator Vector() const { return Vector(data[I]...); }
  SIM_INLINE Swizzle& operator=(const Vector& value) {
    int k = 0;
    ((data[I] = value.data[k++]), ...);
    return *this;
  }
  SIM_INLINE Swizzle& operator=(const Swizzle& other) { return *this = Vector(other); }
  SIM_INLINE T operator[](int i) const { return Vector(*this)[i]; }
};

// Number of components and their type: 1 and T itself for a scalar.
template <typename T>
struct Shape {
  static constexpr int size = 1;
  using Element = T;
  using Value = T;
};
template <typename T, int N>
struct Shape<vec<T, N>> {
  static constexpr int size = N;
  using Element = T;
  using Value = vec<T, N>;
};
template <typename T, int SIZE, int... I>
struct Shape<Swizzle<T, SIZE, I...>> : Shape<vec<T, sizeof...(I)>> {};

template <typename T>
constexpr int size_of_vector = Shape<remove_cv_t<remove_reference_t<T>>>::size;
template <typename T>
constexpr bool is_vector_v = (size_of_vector<T> > 1);
template <typename T>
struct is_vector : bool_constant<is_vector_v<T>> {};

#define SIM_PAIRS(S, first, i)                                                            \
  Swizzle<T, S, i, 0> first##x;                                                           \
  Swizzle<T, S, i, 1> first##y;
#define SIM_TRIPLES(S, first, i, j)                                                       \
  Swizzle<T, S, i, j, 0> first##x;                                                        \
  Swizzle<T, S, i, j, 1> first##y;
#define SIM_QUADS(S, first, i, j, k)                                                      \
  Swizzle<T, S, i, j, k, 0> first##x;                                                     \
  Swizzle<T, S, i, j, k, 1> first##y;
#define SIM_PAIRS_Z(S, first, i) SIM_PAIRS(S, first, i) Swizzle<T, S, i, 2> first##z;
#define SIM_TRIPLES_Z(S, first, i, j)                                                     \
  SIM_TRIPLES(S, first, i, j) Swizzle<T, S, i, j, 2> first##z;
#define SIM_QUADS_Z(S, first, i, j, k)                                                    \
  SIM_QUADS(S, first, i, j, k) Swizzle<T, S, i, j, k, 2> first##z;
#define SIM_PAIRS_W(S, first, i) SIM_PAIRS_Z(S, first, i) Swizzle<T, S, i, 3> first##w;
#define SIM_TRIPLES_W(S, first, i, j)                                                     \
  SIM_TRIPLES_Z(S, first, i, j) Swizzle<T, S, i, j, 3> first##w;
#define SIM_QUADS_W(S, first, i, j, k)                                                    \
  SIM_QUADS_Z(S, first, i, j, k) Swizzle<T, S, i, j, k, 3> first##w;

#define SIM_SWIZZLES_2(S)                                                                 \
  SIM_PAIRS(S, x, 0) SIM_PAIRS(S, y, 1)                                                   \
  SIM_TRIPLES(S, xx, 0, 0) SIM_TRIPLES(S, xy, 0, 1)                                       \
  SIM_TRIPLES(S, yx, 1, 0) SIM_TRIPLES(S, yy, 1, 1)                                       \
  SIM_QUADS(S, xxx, 0, 0, 0) SIM_QUADS(S, xxy, 0, 0, 1) SIM_QUADS(S, xyx, 0, 1, 0)        \
  SIM_QUADS(S, xyy, 0, 1, 1) SIM_QUADS(S, yxx, 1, 0, 0) SIM_QUADS(S, yxy, 1, 0, 1)        \
  SIM_QUADS(S, yyx, 1, 1, 0) SIM_QUADS(S, yyy, 1, 1, 1)

#define SIM_ROW_3(S, a, i)                                                                \
  SIM_PAIRS_Z(S, a, i)                                                                    \
  SIM_TRIPLES_Z(S, a##x, i, 0) SIM_TRIPLES_Z(S, a##y, i, 1) SIM_TRIPLES_Z(S, a##z, i, 2)  \
  SIM_QUADS_Z(S, a##xx, i, 0, 0) SIM_QUADS_Z(S, a##xy, i, 0, 1)                           \
  SIM_QUADS_Z(S, a##xz, i, 0, 2) SIM_QUADS_Z(S, a##yx, i, 1, 0)                           \
  SIM_QUADS_Z(S, a##yy, i, 1, 1) SIM_QUADS_Z(S, a##yz, i, 1, 2)                           \
  SIM_QUADS_Z(S, a##zx, i, 2, 0) SIM_QUADS_Z(S, a##zy, i, 2, 1)                           \
  SIM_QUADS_Z(S, a##zz, i, 2, 2)
#define SIM_SWIZZLES_3(S) SIM_ROW_3(S, x, 0) SIM_ROW_3(S, y, 1) SIM_ROW_3(S, z, 2)

#define SIM_BLOCK_4(S, a, i, b, j)                                                        \
  SIM_TRIPLES_W(S, a##b, i, j)                                                            \
  SIM_QUADS_W(S, a##b##x, i, j, 0) SIM_QUADS_W(S, a##b##y, i, j, 1)                       \
  SIM_QUADS_W(S, a##b##z, i, j, 2) SIM_QUADS_W(S, a##b##w, i, j, 3)
#define SIM_ROW_4(S, a, i)                                                                \
  SIM_PAIRS_W(S, a, i)                                                                    \
  SIM_BLOCK_4(S, a, i, x, 0) SIM_BLOCK_4(S, a, i, y, 1)                                   \
  SIM_BLOCK_4(S, a, i, z, 2) SIM_BLOCK_4(S, a, i, w, 3)
#define SIM_SWIZZLES_4(S)                                                                 \
  SIM_ROW_4(S, x, 0) SIM_ROW_4(S, y, 1) SIM_ROW_4(S, z, 2) SIM_ROW_4(S, w, 3)

// float4(s), float4(a, bc, d), float4(int4): each argument is converted by value.
#define SIM_CONSTRUCTORS(N)                                                               \
  static constexpr int size = N;                                                          \
  vec() = default;                                                                        \
  SIM_INLINE constexpr vec(const vec& other) : data{} { take(other); }                    \
  SIM_INLINE constexpr vec& operator=(const vec& other) {                                 \
    take(other);                                                                          \
    return *this;                                                                         \
  }                                                                                       \
  template <typename A, typename = enable_if_t<!is_vector_v<A> && is_convertible_v<A, T>>> \
  SIM_INLINE constexpr vec(A scalar) : data{} {                                           \
    for (int i = 0; i < N; i++) data[i] = static_cast<T>(scalar);                         \
  }                                                                                       \
  template <typename U>                                                                   \
  SIM_INLINE constexpr explicit vec(const vec<U, N>& other) : data{} {                    \
    for (int i = 0; i < N; i++) data[i] = static_cast<T>(other.data[i]);                  \
  }                                                                                       \
  template <typename A, typename B, typename... More>                                     \
  SIM_INLINE constexpr vec(A a, B b, More... more) : data{} {                             \
    static_assert(                                                                        \
        size_of_vector<A> + size_of_vector<B> + (0 + ... + size_of_vector<More>) == N,    \
        "wrong number of vector components");                                             \
    int at = 0;                                                                           \
    put(at, a);                                                                           \
    put(at, b);                                                                           \
    (put(at, more), ...);                                                                 \
  }                                                                                       \
  SIM_INLINE constexpr T& operator[](int i) { return data[i]; }                           \
  SIM_INLINE constexpr const T& operator[](int i) const { return data[i]; }               \
                                                                                          \
 private:                                                                                 \
  SIM_INLINE constexpr void take(const vec& other) {                                      \
    if (__builtin_is_constant_evaluated()) {                                              \
      for (int i = 0; i < int(sizeof(data) / sizeof(T)); i++) data[i] = other.data[i];    \
    } else {                                                                              \
      whole = other.whole;                                                                \
    }                                                                                     \
  }                                                                                       \
  template <typename A>                                                                   \
  SIM_INLINE constexpr void put(int& at, const A& value) {                                \
    if constexpr (is_vector_v<A>) {                                                       \
      const typename Shape<A>::Value parts = value;                                       \
      for (int i = 0; i < size_of_vector<A>; i++) data[at++] = static_cast<T>(parts[i]);  \
    } else {                                                                              \
      data[at++] = static_cast<T>(value);                                                 \
    }                                                                                     \
  }                                                                                       \
                                                                                          \
 public:

// Copied as one, not component by component: one access to memory. The optimiser splits a struct
// again where components go separate ways, a vector it leaves whole: what is counted needs that.
// What is checked must not have it: a variable that nobody set would lose its NaN on the way.
template <typename T, int N>
#ifdef SIM_COUNTED
using Whole = uint8_t __attribute__((vector_size(N * sizeof(T)), may_alias));
#else
struct alignas(N * sizeof(T)) Whole {
  T data[N];
};
#endif

template <typename T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    T data[2];
    Whole<T, 2> whole;
    struct {
      T x, y;
    };
    struct {
      T r, g;
    };
    SIM_SWIZZLES_2(2)
  };
  SIM_CONSTRUCTORS(2)
};

// Three components take the room of four, as in Metal.
template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    T data[4];
    Whole<T, 4> whole;
    struct {
      T x, y, z;
    };
    struct {
      T r, g, b;
    };
    SIM_SWIZZLES_3(4)
  };
  SIM_CONSTRUCTORS(3)
};

template <typename T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    T data[4];
    Whole<T, 4> whole;
    struct {
      T x, y, z, w;
    };
    struct {
      T r, g, b, a;
    };
    SIM_SWIZZLES_4(4)
    Swizzle<T, 4, 0, 1> rg;
    Swizzle<T, 4, 2, 3> ba;
    Swizzle<T, 4, 0, 1, 2> rgb;
  };
  SIM_CONSTRUCTORS(4)
};

// The vector type of an operation on A and B: theirs where one is a vector and the other is the
// same vector or a scalar; none otherwise, as Metal converts no vector implicitly.
template <typename A, typename B>
struct Common {
  using VA = typename Shape<A>::Value;
  using VB = typename Shape<B>::Value;
  static constexpr bool valid = (is_vector_v<A> || is_vector_v<B>) &&
      (is_same_v<VA, VB> || (!is_vector_v<A> && is_arithmetic_v<A>) ||
       (!is_vector_v<B> && is_arithmetic_v<B>));
  using type = conditional_t<is_vector_v<A>, VA, VB>;
};
template <typename A, typename B>
using common_vector = typename enable_if<Common<A, B>::valid, Common<A, B>>::type::type;

#define SIM_BINARY(op)                                                                    \
  template <typename A, typename B, typename V = common_vector<A, B>>                     \
  SIM_INLINE constexpr V operator op(const A& a, const B& b) {                            \
    const V left = a, right = b;                                                          \
    V result{};                                                                           \
    for (int i = 0; i < V::size; i++)                                                     \
      result.data[i] =                                                                    \
          static_cast<typename Shape<V>::Element>(left.data[i] op right.data[i]);         \
    return result;                                                                        \
  }                                                                                       \
  template <typename T, int N, typename B, typename V = common_vector<vec<T, N>, B>>      \
  SIM_INLINE constexpr vec<T, N>& operator op##=(vec<T, N>& a, const B& b) {              \
    return a = a op b;                                                                    \
  }                                                                                       \
  template <typename T, int S, int... I, typename B,                                      \
            typename V = common_vector<vec<T, sizeof...(I)>, B>>                          \
  SIM_INLINE constexpr Swizzle<T, S, I...>& operator op##=(                               \
      Swizzle<T, S, I...>& a, const B& b) {                                               \
    return a = a op b;                                                                    \
  }
SIM_BINARY(+)
SIM_BINARY(-)
SIM_BINARY(*)
SIM_BINARY(/)
SIM_BINARY(%)
SIM_BINARY(&)
SIM_BINARY(|)
SIM_BINARY(^)
SIM_BINARY(<<)
SIM_BINARY(>>)
#undef SIM_BINARY

#define SIM_COMPARISON(op)                                                                \
  template <typename A, typename B, typename V = common_vector<A, B>>                     \
  SIM_INLINE constexpr vec<bool, V::size> operator op(const A& a, const B& b) {           \
    const V left = a, right = b;                                                          \
    vec<bool, V::size> result{};                                                          \
    for (int i = 0; i < V::size; i++) result.data[i] = left.data[i] op right.data[i];     \
    return result;                                                                        \
  }
SIM_COMPARISON(==)
SIM_COMPARISON(!=)
SIM_COMPARISON(<)
SIM_COMPARISON(<=)
SIM_COMPARISON(>)
SIM_COMPARISON(>=)
SIM_COMPARISON(&&)
SIM_COMPARISON(||)
#undef SIM_COMPARISON

#define SIM_UNARY(op)                                                                     \
  template <typename A, typename V = common_vector<A, A>>                                 \
  SIM_INLINE constexpr V operator op(const A& a) {                                        \
    V result = a;                                                                         \
    for (int i = 0; i < V::size; i++)                                                     \
      result.data[i] = static_cast<typename Shape<V>::Element>(op result.data[i]);        \
    return result;                                                                        \
  }
SIM_UNARY(-)
SIM_UNARY(~)
SIM_UNARY(!)
#undef SIM_UNARY

#undef SIM_CONSTRUCTORS
#undef SIM_SWIZZLES_2
#undef SIM_SWIZZLES_3
#undef SIM_SWIZZLES_4

}  // namespace metal
