// Casts to and from e4m3, bound by memory.
#include "fp8_cast.h"

#include "codes.h"

namespace torchmlx::ISA {
namespace {

// Values that a thread should have.
constexpr int64_t SMALL = 1 << 15;

template <class T>
void narrow_all(const T* x, uint8_t* out, int64_t count) {
  for (int64_t i = 0; i < count; i += W) {
    int64_t left = min(W, count - i);
    store_codes(out + i, narrow_codes(left == W ? load(x + i) : load(x + i, left)), left);
  }
}

template <class T>
void widen_all(const uint8_t* x, T* out, int64_t count) {
  for (int64_t i = 0; i < count; i += W) {
    int64_t left = min(W, count - i);
    vf value = widen_codes(load_codes(x + i, left));
    left == W ? store(out + i, value) : store(out + i, value, left);
  }
}

}  // namespace

void fp8_cast(const Fp8Cast& p) {
  with_type(p.type, [&](auto zero) {
    using T = decltype(zero);
    parallel(p.count, SMALL, [&](int64_t begin, int64_t end) {
      if (p.narrows) {
        narrow_all(static_cast<const T*>(p.x) + begin, static_cast<uint8_t*>(p.out) + begin,
                   end - begin);
      } else {
        widen_all(static_cast<const uint8_t*>(p.x) + begin, static_cast<T*>(p.out) + begin,
                  end - begin);
      }
    });
  });
}

}  // namespace torchmlx::ISA
