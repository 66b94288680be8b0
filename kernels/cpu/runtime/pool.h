// Threads that share out loops, and memory that each thread keeps for its intermediate values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torchmlx {

// Threads that take part in a loop, the calling one included.
int threads();

// Change their number; 1 computes everything in the caller. Waits for a running loop to end, so
// that no loop may call it.
void set_threads(int count);

using Body = void (*)(const void* context, int64_t begin, int64_t end);

// Run `body` over [0, count) in pieces of at most `grain`, on the caller and on the pool; return
// when all is done. A loop inside a loop, or one that begins while another thread's loop has the
// pool, runs in its caller alone, as one piece: more threads than cores would only wait for each
// other. The first exception of a piece is thrown in the caller.
void run(int64_t count, int64_t grain, Body body, const void* context);

// The same for anything that can be called with (begin, end).
template <class F>
static inline void parallel(int64_t count, int64_t grain, const F& body) {
  run(count, grain,
      [](const void* context, int64_t begin, int64_t end) {
        (*static_cast<const F*>(context))(begin, end);
      },
      &body);
}

// This thread's memory number `slot`: 64-byte aligned, at least `bytes` long, its contents lost
// when it grows. Valid until the thread asks for the same slot again.
void* scratch(int slot, size_t bytes);

}  // namespace torchmlx
