#include "compute/host_link.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

namespace zero::detail {
namespace {

c10::Stream stream_of_pool(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/false);
}

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void copy_on(const c10::Stream& stream, const at::Tensor& from, const at::Tensor& into) {
  const at::Tensor& host = from.is_cpu() ? from : into;
  const c10::StreamGuard guard(stream);
  at::Tensor(into).copy_(from, /*non_blocking=*/host.is_pinned());
}

}  // namespace

void Transfer::wait() {
  if (end_ && !end_->query()) end_->synchronize();
  end_.reset();
}

void Transfer::order(const c10::Stream& before) {
  if (end_) end_->block(before);
}

HostLink::HostLink(c10::Device device)
    : device_(device), down_(stream_of_pool(device)), up_(stream_of_pool(device)) {}

Transfer HostLink::mark(const c10::Stream& stream) const {
  auto end = std::make_shared<c10::Event>(device_.type());
  end->record(stream);
  return Transfer(std::move(end));
}

void HostLink::follow_current() {
  Transfer given = mark(current_stream(device_));
  given.order(down_);
  given.order(up_);
}

void HostLink::lead_current(Transfer& transfer) const { transfer.order(current_stream(device_)); }

void HostLink::copy_down(const at::Tensor& from, const at::Tensor& into, Transfer* before) {
  if (before != nullptr) before->order(down_);
  copy_on(down_, from, into);
}

Transfer HostLink::downs() const { return mark(down_); }

void HostLink::copy_up(const at::Tensor& from, const at::Tensor& into, Transfer* before) {
  if (before != nullptr) before->order(up_);
  copy_on(up_, from, into);
}

Transfer HostLink::ups() const { return mark(up_); }

}  // namespace zero::detail
