#pragma once
// GELU of our models, with its gradient.

#include <torch/types.h>

namespace zero::detail {

/// at::gelu(x, "tanh"), fast where operators/gelu.h is.
at::Tensor tanh_gelu(const at::Tensor& x);

}  // namespace zero::detail
