#pragma once
// Rows of a softmax cross-entropy over logits, in one read and without a copy in fp32. Sums run in fixed
// lanes: the same bits on every processor with AVX2.

#include <cstdint>

#include "operators/element.h"

namespace zero::detail {

/// log(sum(exp(logits))) of n >= 1 logits; NaN if one is NaN or +inf.
float log_sum_exp(const float* logits, int64_t n);
float log_sum_exp(const Bf16* logits, int64_t n);

/// logits[i] = scale * exp(logits[i] - log_sum_exp): the gradient of a row but for its target.
void scaled_softmax(float* logits, int64_t n, float log_sum_exp, float scale);
void scaled_softmax(Bf16* logits, int64_t n, float log_sum_exp, float scale);

/// out[i] = logits[i] - log_sum_exp.
void log_softmax_row(const float* logits, float* out, int64_t n, float log_sum_exp);
void log_softmax_row(const Bf16* logits, Bf16* out, int64_t n, float log_sum_exp);

/// out[i] = scale * exp(log_probabilities[i]).
void scaled_exp(const float* log_probabilities, float* out, int64_t n, float scale);
void scaled_exp(const Bf16* log_probabilities, Bf16* out, int64_t n, float scale);

}  // namespace zero::detail
