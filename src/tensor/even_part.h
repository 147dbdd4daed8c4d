#pragma once
// Equal parts, in order of memory, of tensors that all tensor-parallel ranks hold alike.

#include <memory>
#include <optional>

#include "seam/forward_context.h"
#include "tensor/tensor_axis.h"

namespace zero::detail {

/// This rank's part of a dense tensor, the last rank's filled up with zeros; `whole` is collective over the
/// axis, gives the tensor's sizes and strides, and has no gradient. Nothing for wrappers and for tensors
/// with gaps or fewer elements than ranks.
std::optional<KeptPart> even_part(const at::Tensor& tensor, const std::shared_ptr<TensorAxis>& axis);

}  // namespace zero::detail
