#pragma once
// The logarithm of a softmax over the last dim, and its gradient where each row has one upstream element:
// that of a negative log likelihood, whose matrix of zeros then need not exist.

#include <ATen/core/Tensor.h>

namespace zero::detail {

/// Whether the functions below take x: on CPU, contiguous, of at least one dim, not empty, fp32 or bf16.
bool has_fast_log_softmax(const at::Tensor& x);

/// at::log_softmax(x, -1), without a graph. Sums are fp32 and run in fixed lanes: the same bits on every
/// processor with AVX2.
at::Tensor fast_log_softmax(const at::Tensor& x);

/// The gradient of the logits for log_probabilities [rows, classes], of which only [i, targets[i]] has an
/// upstream gradient, values[i]: values[i] * ([j == targets[i]] - exp(log_probabilities[i, j])). targets
/// [rows] int64, values [rows] fp32, both contiguous; where a value is 0 the target may be anything.
at::Tensor log_softmax_gradient(const at::Tensor& log_probabilities, const at::Tensor& targets,
                                const at::Tensor& values);

}  // namespace zero::detail
