#if defined(__AVX512F__)

#include "operators/product/by_vectors.h"
#include "operators/product/variants.h"

namespace zero::product {

const KernelsOf<uint16_t> kBf16Avx512 = kernels_named<uint16_t>("avx512");
const KernelsOf<float> kFp32Avx512 = kernels_named<float>("avx512");

}  // namespace zero::product

#endif
