#include "compute/host_copies.h"

#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "compute/wait_place.h"

namespace zero::detail {
namespace {

at::Tensor pinned_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(true));
}

}  // namespace

at::Tensor copied_to_device(const at::Tensor& host, c10::Device device) {
  if (device.is_cpu()) return host;
  const at::Tensor result = at::empty(host.sizes(), host.options().device(device));
  copy_to_device(host, result);
  return result;
}

void copy_to_device(const at::Tensor& host, const at::Tensor& into) {
  if (into.is_cpu()) {
    at::Tensor(into).copy_(host);
    return;
  }
  const at::Tensor pinned = pinned_like(host);
  at::Tensor(pinned).copy_(host);
  at::Tensor(into).copy_(pinned, /*non_blocking=*/true);
}

HostCopy::HostCopy(const at::Tensor& values) {
  if (values.is_cpu()) {
    host_ = values;
    return;
  }
  host_ = pinned_like(values);
  host_.copy_(values, /*non_blocking=*/true);
  copied_.emplace(values.device().type());
  copied_->record(c10::impl::VirtualGuardImpl(values.device().type()).getStream(values.device()));
}

const at::Tensor& HostCopy::values() {
  const WaitPlace place("copy to the host");
  if (copied_ && !copied_->query()) copied_->synchronize();
  copied_.reset();
  return host_;
}

}  // namespace zero::detail
