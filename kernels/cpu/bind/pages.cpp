// Arrays in huge pages: a page of 4 KiB ends what the processor reads ahead, one of 2 MiB hardly ever.
#include <sys/mman.h>

#include <cstring>

#include "bind/node.h"

namespace torchmlx {
namespace {

constexpr size_t HUGE_PAGE = 2 << 20;

mx::array available(mx::array x) {
  x.set_status(mx::array::Status::available);
  return x;
}

// An array of undefined values that starts with a huge page, if the system has such.
mx::array in_huge_pages(const std::vector<int>& sizes, mx::Dtype dtype) {
  mx::Shape shape(sizes.begin(), sizes.end());
  mx::array out(shape, dtype, nullptr, {});
  size_t bytes = out.nbytes();
  mx::allocator::Data data = mx::allocator::malloc(bytes + HUGE_PAGE);
  auto address = reinterpret_cast<uintptr_t>(data.buffer().raw_ptr());
  uintptr_t start = (address + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
#if defined(MADV_HUGEPAGE)
  // Advice: where it fails, pages are small. The last page may be left in part to other memory.
  madvise(reinterpret_cast<void*>(start), bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
  mx::Strides strides(shape.size());
  int64_t step = 1;
  size_t longest = 1;
  for (int d = static_cast<int>(shape.size()) - 1; d >= 0; --d) {
    strides[d] = step;
    step *= shape[d];
    longest = std::max(longest, static_cast<size_t>(shape[d]));
  }
  bool line = out.size() <= longest;
  int64_t offset = static_cast<int64_t>(start - address);  // in bytes
  out.set_data(std::move(data), out.size(), strides, {true, true, line}, offset);
  return available(std::move(out));
}

// A copy of x, `offset` bytes into memory, with which it shares the buffer from then on.
mx::array place(mx::array x, const mx::array& memory, size_t offset) {
  x.eval();
  if (!x.flags().row_contiguous || offset % x.itemsize() ||
      offset + x.nbytes() > memory.nbytes()) {
    throw std::invalid_argument("place: the array is not contiguous or does not fit there");
  }
  mx::array out(x.shape(), x.dtype(), nullptr, {});
  auto items = static_cast<int64_t>(offset / x.itemsize());
  out.copy_shared_buffer(memory, x.strides(), x.flags(), x.size(), items);
  std::memcpy(out.data<void>(), x.data<void>(), x.nbytes());
  return available(std::move(out));
}

}  // namespace

BIND(m) {
  m.def("in_huge_pages", &in_huge_pages, "sizes"_a, "dtype"_a);
  m.def("place", &place, "x"_a, "memory"_a, "offset"_a);
}

}  // namespace torchmlx
