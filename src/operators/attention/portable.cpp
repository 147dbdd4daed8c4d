#include "operators/attention/body.h"
#include "operators/attention/variants.h"

namespace zero::attention {

const Kernels kPortable{"portable", &forward, &backward};

}  // namespace zero::attention
