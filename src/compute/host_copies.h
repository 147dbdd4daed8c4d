#pragma once
// Small copies between host and device that nobody waits for: they go through pinned memory, in the order of
// the current stream. On the CPU they are the tensors themselves.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>

namespace zero::detail {

/// The values of a contiguous tensor on the CPU, on `device`. The host may change or let go of `host` at once
/// (but on the CPU, where the result is the same tensor).
at::Tensor copied_to_device(const at::Tensor& host, c10::Device device);

/// The same into a tensor that is there. Of one size and type.
void copy_to_device(const at::Tensor& host, const at::Tensor& into);

/// A tensor's values as they are when the device comes to it, on their way to the host. Not thread safe.
class HostCopy {
 public:
  explicit HostCopy(const at::Tensor& values);
  /// On the CPU. Waits for the device only where it has not come to the copy yet.
  const at::Tensor& values();

 private:
  at::Tensor host_;
  std::optional<c10::Event> copied_;
};

}  // namespace zero::detail
