#pragma once
// The gradient of a log-softmax over the last dim where each row has one upstream element: that of a negative
// log likelihood, whose matrix of zeros then need not exist.

#include <ATen/core/Tensor.h>

namespace zero::detail {

/// Whether the function below takes what log_softmax gave: on CPU, contiguous, of at least one dim, not
/// empty, fp32 or bf16.
bool has_log_softmax_gradient(const at::Tensor& log_probabilities);

/// The gradient of the logits for log_probabilities [rows, classes], of which only [i, targets[i]] has an
/// upstream gradient, values[i]: values[i] * ([j == targets[i]] - exp(log_probabilities[i, j])). targets
/// [rows] int64, values [rows] fp32, both contiguous; where a value is 0 the target may be anything. A row of
/// NaN gives NaN, its value 0 or not, as LibTorch's product with 0 does.
at::Tensor log_softmax_gradient(const at::Tensor& log_probabilities, const at::Tensor& targets,
                                const at::Tensor& values);

}  // namespace zero::detail
