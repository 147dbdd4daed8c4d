#pragma once

#include "operators/attention/kernels.h"

namespace zero::attention {

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2, kAvx512, kAmx;
#endif

}  // namespace zero::attention
