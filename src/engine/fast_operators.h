#pragma once
// Operators that the engine computes in LibTorch's place, for any model: those of its CPU kernels that are
// slow.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace zero::detail {

/// Computes `op` where there is a faster way for these arguments: they leave `stack`, the result takes their
/// place. False: not computed, and `stack` is as it was. Thread safe.
///   gelu and gelu_backward, tanh, fp32 and bf16: values agree with LibTorch's to rounding
///   (operators/gelu.h). mm, bf16: matrices with odd rows (operators/product.h).
bool run_fast(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace zero::detail
