#pragma once
// Each is compiled for its processors (flags.cmake).

#include "operators/product/product.h"

namespace zero::product {

extern const KernelsOf<uint16_t> kBf16Avx2, kBf16Avx512, kBf16Amx;
extern const KernelsOf<float> kFp32Avx2, kFp32Avx512;

}  // namespace zero::product
