#pragma once
// Operators that the engine computes in LibTorch's place, for any model: those of its CPU kernels that are
// slow. The CMake option ZERO_CPU_OPERATORS leaves them out.

#include <ATen/core/Tensor.h>

#include <vector>

#include "seam/dispatch.h"

namespace zero::detail {

/// False where the library was built without them: none of what follows does anything then.
bool has_cpu_operators();

/// Computes `op` where ours is faster for these arguments: they leave `stack`, the result takes their place.
/// False: not computed, and `stack` is as it was. Thread safe. Values agree with LibTorch's to rounding:
///   gelu and gelu_backward by tanh, fp32 and bf16 (operators/gelu.h);
///   attention and its backward, fp32 and bf16 (operators/attention.h);
///   mm, addmm and bmm of bf16 (operators/product.h);
///   nll_loss_backward and _log_softmax_backward_data where they follow each other
///   (operators/target_gradients.h).
/// Tensors of other layouts and devices are LibTorch's, and those of fp32 where LibTorch was told to multiply
/// them with less precision.
bool run_cpu_operator(const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// run_cpu_operator where it is asked for, for InterceptOperators.
inline OwnKernels cpu_operators(bool on) { return on ? &run_cpu_operator : nullptr; }

/// Prepares the graph of `outputs` for one backward of this thread with cpu_operators(true).
void prepare_cpu_operators(const std::vector<at::Tensor>& outputs);

}  // namespace zero::detail
