#include "virtual/copies.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <chrono>
#include <string>
#include <utility>

#include "virtual/operator_call.h"
#include "virtual/operator_traits.h"
#include "virtual/runtime.h"
#include "virtual/shapes.h"

namespace zero::virtual_device {
namespace {

constexpr double kReadAndWrite = 2;

struct CopyPlan {
  int device;        // whose stream it runs on
  int other_device;  // of a copy between two devices, else the same
  bool is_from_host, is_to_host;

  const char* name() const { return is_from_host ? "copy to device" : is_to_host ? "copy to host" : "copy"; }
  Lane lane() const { return is_from_host ? Lane::CopyIn : is_to_host ? Lane::CopyOut : Lane::Compute; }
  Picoseconds time(const DeviceDescription& description, const KernelWork& work) const {
    if (description.operators.contains(work.name)) return description.time_of(work);
    const double bytes = work.bytes / kReadAndWrite;
    if (is_from_host) return description.host_to_device.time_of(bytes);
    if (is_to_host) return description.device_to_host.time_of(bytes);
    if (device != other_device) return description.device_to_device.time_of(bytes);
    return description.time_of(work);
  }
};

Touch touch_of_either(Machine& owner, const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (!tensor.is_cpu()) return {block_of(storage), region_of(tensor), &tensor};
  // Offsets are from the allocation's beginning, which need not be the storage's.
  const auto* data = static_cast<const char*>(storage._mutable_data_ptr_no_checks().get());
  Block* pinned = owner.pinned_block(data);
  if (pinned == nullptr) return {nullptr, {}, &tensor};
  return {pinned, region_of(tensor).shifted(static_cast<size_t>(data - pinned->host)), &tensor};
}

void move_bytes(const at::Tensor& target, const at::Tensor& source) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKeySet(c10::DispatchKey::Fake));
  // A queued copy may run while an operator of its thread takes memory: what it makes is the host's.
  const Stamp* kernel = std::exchange(this_thread().kernel, nullptr);
  target.copy_(source);
  this_thread().kernel = kernel;
}

// Of a copy where there are shapes only; its target has the right contents where it is false.
bool has_bytes_to_move(const CopyPlan& plan, const at::Tensor& source, const at::Tensor& target) {
  const bool from_values = has_values(source);
  if (!plan.is_to_host) {
    note_contents(target, from_values);
  } else if (!from_values) {
    move_bytes(target, at::ones({}, target.options().requires_grad(false)));
  }
  return from_values && has_values(target);
}

void warn_of_unpinned(Machine& owner, const CopyPlan& plan, const at::Tensor& host) {
  if (!owner.has_checks() || host.numel() <= 1) return;
  owner.note_fault(FaultKind::UnpinnedCopy,
                   std::string(plan.name()) + " of " + std::to_string(host.nbytes()) +
                       " bytes with non_blocking and host memory that is not pinned: "
                       "the host waits for it; use pin_memory()");
}

}  // namespace

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  Machine& owner = machine();
  const std::lock_guard lock(owner.mutex());
  OperatorCall from, to;
  const at::Tensor source_bytes = from.to_cpu(source, false, true),
                   target_bytes = to.to_cpu(target, true, false);
  const int device = from.device() >= 0 ? from.device() : to.device();
  const CopyPlan plan{device, to.device() >= 0 ? to.device() : device, from.device() < 0, to.device() < 0};
  const int clock = current_clock(plan.device), other_clock = current_clock(plan.other_device);
  if (other_clock != clock) owner.wait(clock, owner.record(other_clock));
  this_thread().last_work = plan.name();
  const Stamp at = owner.launch(clock, plan.name());
  const Touch read = touch_of_either(owner, source), written = touch_of_either(owner, target);
  owner.require_written(read, at);
  owner.note(read, false, at);
  owner.note(written, true, at);
  owner.note_written(written);
  const auto bytes = static_cast<double>(source.nbytes());
  const bool converts = source.scalar_type() != target.scalar_type();
  const KernelWork work{converts && plan.lane() == Lane::Compute ? "convert" : plan.name(), 0,
                        bytes + static_cast<double>(target.nbytes()), rate_type(source.scalar_type())};
  owner.spend(at, plan.lane(), plan.time(owner.description(), work), bytes, 0);
  const bool touches_host = plan.is_from_host || plan.is_to_host;
  const Touch& host = plan.is_from_host ? read : written;
  if (plan.is_to_host) owner.note_host_read(plan.device);
  const bool moves = !owner.has_shapes_only() || has_bytes_to_move(plan, source, target);
  if (touches_host && non_blocking && host.block != nullptr) {
    owner.queue_copy(at, host, plan.is_to_host, [source_bytes, target_bytes, source, target, moves] {
      if (moves) move_bytes(target_bytes, source_bytes);
    });
  } else {
    if (host.block != nullptr && touches_host) Machine::open(*host.block);
    const auto began = std::chrono::steady_clock::now();
    if (moves) move_bytes(target_bytes, source_bytes);
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - began;
    if (owner.has_samples() && plan.lane() == Lane::Compute)
      owner.add_sample({std::string(work.name), 0, work.bytes, work.dtype, took.count()});
    if (touches_host && non_blocking) warn_of_unpinned(owner, plan, plan.is_from_host ? source : target);
    if (other_clock != clock) owner.wait(other_clock, owner.record(clock));
    if (touches_host) {
      owner.note_host_wait(plan.device, plan.name());
      owner.synchronize(clock);
    }
  }
  owner.raise_faults(plan.name());
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  target.resize_(source.sizes());
  return copy_from(source, target, /*non_blocking=*/false);
}

}  // namespace zero::virtual_device
