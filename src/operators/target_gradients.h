#pragma once
// The gradient of log-probabilities that only a negative log likelihood uses has one element a row. Autograd
// makes a matrix of zeros around them, and log-softmax's backward reads it and makes another. Here the
// elements stay a vector until that backward takes them: one matrix of logits less at the peak, three passes
// over one less.

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <vector>

namespace zero::detail {

/// Prepares the graph of `outputs` for one backward of this thread that makes no graph of its own: where
/// nll_loss takes what log_softmax made, nobody else does, and no hook would see the matrix.
void prepare_target_gradients(const std::vector<at::Tensor>& outputs);

/// aten::nll_loss_backward and aten::_log_softmax_backward_data (cpu_operators.h) in such a backward.
bool keep_target_gradient(torch::jit::Stack& stack);
bool take_target_gradient(torch::jit::Stack& stack);

}  // namespace zero::detail
