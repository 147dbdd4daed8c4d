#if defined(__AVX2__)

#include "operators/product/by_vectors.h"
#include "operators/product/variants.h"

namespace zero::product {

const KernelsOf<uint16_t> kBf16Avx2 = kernels_named<uint16_t>("avx2");
const KernelsOf<float> kFp32Avx2 = kernels_named<float>("avx2");

}  // namespace zero::product

#endif
