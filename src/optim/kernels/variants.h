#pragma once
// The compiled variants; null where the compiler's target has no such instructions.

#include "optim/kernels/kernels.h"

namespace zero::kernels {

const KernelSet* reference_kernels();
const KernelSet* avx2_kernels();
const KernelSet* avx512_kernels();

}  // namespace zero::kernels
