// The portable kernels: a plain loop that defines the bits of all others.
#include "optim/kernels/kernel_set.h"
#include "optim/kernels/variants.h"

namespace zero::kernels {

const KernelSet* reference_kernels() {
  static constexpr KernelSet kSet = kernel_set<Scalar>("reference");
  return &kSet;
}

}  // namespace zero::kernels
