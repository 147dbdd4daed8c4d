#if defined(__AVX2__)

#include "operators/product/fp32_body.h"
#include "operators/product/variants.h"

namespace zero::product {

const KernelsOf<float> kFp32Avx2{"avx2", &parts_of, &scratch_bytes, &multiply};

}  // namespace zero::product

#endif
