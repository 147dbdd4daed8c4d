#pragma once
// The loop of log_softmax_gradient.h. The same bits on every processor with AVX2.

#include <cstdint>

#include "operators/element.h"

namespace zero::detail {

/// out[i] = scale * exp(log_probabilities[i]).
void scaled_exp(const float* log_probabilities, float* out, int64_t n, float scale);
void scaled_exp(const Bf16* log_probabilities, Bf16* out, int64_t n, float scale);

}  // namespace zero::detail
