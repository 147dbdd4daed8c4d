#if defined(__AVX512F__)

#include "operators/attention/body.h"
#include "operators/attention/variants.h"

namespace zero::attention {

const Kernels kAvx512{"avx512", kLongestHalf, &forward, &backward};

}  // namespace zero::attention

#endif
