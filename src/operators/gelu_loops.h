#pragma once
// The loops of gelu.h. The same bits on every processor with AVX2.

#include <cstdint>

#include "operators/element.h"

namespace zero::detail {

void tanh_gelu(const float* x, float* y, int64_t n);
void tanh_gelu(const Bf16* x, Bf16* y, int64_t n);

/// out = gradient * the derivative at x. `out` may be `gradient`.
void tanh_gelu_backward(const float* x, const float* gradient, float* out, int64_t n);
void tanh_gelu_backward(const Bf16* x, const Bf16* gradient, Bf16* out, int64_t n);

}  // namespace zero::detail
