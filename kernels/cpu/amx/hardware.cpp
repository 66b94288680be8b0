// The product of tiles by the processor's own; compiled for it, and run only where it is there.
#include <immintrin.h>

#include "amx/multiply.h"

namespace torchmlx {

void multiply_by_amx(const TileProduct& p) { multiply(p); }

}  // namespace torchmlx
