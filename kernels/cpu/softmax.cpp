// Softmax along an axis, in float32.
#include "simd.h"

namespace torchmlx::ISA {

void softmax(const Softmax&) {}

}  // namespace torchmlx::ISA
