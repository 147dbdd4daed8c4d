#if defined(__AVX512F__)

#include "operators/product/fp32_body.h"
#include "operators/product/variants.h"

namespace zero::product {

const KernelsOf<float> kFp32Avx512{"avx512", &parts_of, &scratch_bytes, &multiply};

}  // namespace zero::product

#endif
