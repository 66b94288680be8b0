// Several products of the same rows. Few rows read all matrices in one loop, so that threads meet
// once; many rows are one product after another.
#include "projections.h"

#include "gemv.h"

namespace torchmlx::ISA {
namespace {

template <class T, class Words>
void few(const Projections& p) {
  auto part = [](const Matmul& m) {
    return FewRows<T, Words>(m, static_cast<const T*>(m.a), static_cast<const T*>(m.b),
                             static_cast<T*>(m.out));
  };
  const FewRows<T, Words> parts[] = {part(p.parts[0]), part(p.parts[1]), part(p.parts[2])};
  int64_t total = p.parts[0].n + p.parts[1].n + p.parts[2].n;
  parallel(total, parts[0].grain(total), [&](int64_t begin, int64_t end) {
    for (int i = 0; i < 3; ++i) {
      int64_t n = p.parts[i].n;
      parts[i].columns(max(begin, 0), min(end, n));
      begin -= n;
      end -= n;
    }
  });
}

}  // namespace

void projections(const Projections& p) {
  bool all_few = p.parts[0].m > 0;
  for (const Matmul& part : p.parts) {
    all_few = all_few && few_rows(part);
  }
  if (!all_few) {
    for (const Matmul& part : p.parts) {
      matmul(part);
    }
    return;
  }
  with_type(p.parts[0].type, [&](auto zero) {
    using T = decltype(zero);
    few<T, typename WordsOf<T>::Type>(p);
  });
}

}  // namespace torchmlx::ISA
