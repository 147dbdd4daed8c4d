#if defined(__AVX2__)

#include "operators/attention/body.h"
#include "operators/attention/variants.h"

namespace zero::attention {

const Kernels kAvx2{"avx2", kLongestHalf, &forward, &backward};

}  // namespace zero::attention

#endif
