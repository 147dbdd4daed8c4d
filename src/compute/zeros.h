#pragma once
// Zeros that cost nothing until they are used.

#include <ATen/core/Tensor.h>

namespace zero::detail {

/// [numel] zeros. On the CPU, under use_training_allocator(), memory where no tensor was before is not
/// written: the kernel gives each of its pages as zeros when it is first used. Thread safe.
at::Tensor zeros(int64_t numel, const at::TensorOptions& options);

}  // namespace zero::detail
