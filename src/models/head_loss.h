#pragma once
// The cross-entropy above a head. Autograd keeps the logits' log-probabilities and makes a gradient beside
// them; here logits exist for some rows at a time, and become their own gradient at once.

#include <torch/types.h>

namespace zero::detail {

/// Mean cross-entropy of hidden [rows, width] * weight [vocabulary, width]^T against targets [rows] int64,
/// -100 left out; fp32, of fp64 fp64. On any device, without stopping the host there. Its gradients are
/// computed in the forward, by LibTorch's operators, so that one backward may take them; it throws in a
/// second one.
/// `rows_at_a_time` 0: as many as make kLogitsAtATime logits.
at::Tensor head_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     int64_t rows_at_a_time = 0);

}  // namespace zero::detail
