#pragma once
// Copies between the host and virtual devices, and among those.

#include <ATen/core/Tensor.h>

namespace zero::virtual_device {

/// copy_() where one of the two is on a virtual device. On the current stream of the device; asynchronous
/// with `non_blocking` and pinned memory, the bytes then move when something comes after the copy.
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking);
at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target);

}  // namespace zero::virtual_device
