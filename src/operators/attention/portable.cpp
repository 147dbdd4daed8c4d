#include "operators/attention/body.h"
#include "operators/attention/variants.h"

namespace zero::attention {

const Kernels kPortable{"portable", kLongestHalf, &forward, &backward};

}  // namespace zero::attention
