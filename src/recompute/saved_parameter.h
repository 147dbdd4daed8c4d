#pragma once

#include <ATen/core/Tensor.h>

namespace zero::detail {

/// A leaf that needs a gradient, or a view of one.
inline bool is_parameter(const at::Tensor& tensor) {
  const at::TensorBase& leaf = tensor.is_view() ? tensor._base() : tensor;
  return leaf.is_leaf() && leaf.requires_grad();
}

}  // namespace zero::detail
