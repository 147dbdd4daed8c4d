#include "sharding/device_sums.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "compute/memory_purpose.h"
#include "compute/wait_place.h"

namespace zero::detail {
namespace {

constexpr int64_t kLeavingSums = 2;  // of the largest unit, whose memory waits for their copies

}  // namespace

DeviceSums::DeviceSums(StateStore& states, std::string_view kind, std::span<const Place> places,
                       const at::TensorOptions& options)
    : states_(states), host_(*states.host()), kind_(kind), options_(options) {
  for (const Place& place : places) {
    const auto unit = static_cast<size_t>(place.unit);
    if (sums_.size() <= unit) sums_.resize(unit + 1);
    sums_[unit].numel = place.numel;
    largest_bytes_ = std::max(largest_bytes_, place.numel * static_cast<int64_t>(options.dtype().itemsize()));
  }
  for (const Place& place : places) {
    Sum& sum = sums_[static_cast<size_t>(place.unit)];
    if (place.tier == Tier::Disk) {
      states.create_passing(kind, std::span(&place.unit, 1), {place.numel}, options, Tier::Disk);
      states.when_lent(place.unit, kind, [this, &sum] { write(sum); });
      continue;
    }
    sum.on_host = host_.memory.zeros(place.numel, c10::typeMetaToScalarType(options.dtype()));
    states.adopt(place.unit, kind, sum.on_host, [&sum] {
      const WaitPlace wait_place("gradient from the device");
      sum.arrival.wait();
    });
  }
}

bool DeviceSums::has(int unit) const {
  return unit < std::ssize(sums_) && sums_[static_cast<size_t>(unit)].numel >= 0;
}

// The host's memory of a sum: of one on a disk for as long as this has its lease.
at::Tensor DeviceSums::memory_of(size_t unit) {
  Sum& sum = sums_[unit];
  if (!sum.is_on_disk()) return sum.on_host;
  if (!sum.lease[kind_].defined()) {
    const std::string_view kind = kind_;
    sum.lease = states_.lend(static_cast<int>(unit), {kind}, StateStore::Use::Write);
  }
  return sum.lease[kind_];
}

// Once a sum that goes to a disk has come from the device.
void DeviceSums::write(Sum& sum) {
  if (sum.is_taken || !sum.lease[kind_].defined()) return;
  const WaitPlace place("gradient from the device");
  sum.arrival.wait();
  sum.lease.end();
}

at::Tensor DeviceSums::take(int number) {
  const auto unit = static_cast<size_t>(number);
  Sum& sum = sums_[unit];
  const MemoryPurposeScope purpose(MemoryPurpose::Gradients);
  const at::Tensor memory = at::empty({sum.numel}, options_);
  if (!sum.has_values) return memory;
  const at::Tensor on_host = memory_of(unit);
  sum.is_taken = true;
  host_.link.follow_current();  // which may have used the memory before
  const WaitPlace place("gradient to the device");
  host_.link.copy_up(on_host, memory, &sum.arrival);
  Transfer copied = host_.link.ups();
  host_.link.lead_current(copied);
  return memory;
}

void DeviceSums::put(int number, const at::Tensor& values) {
  const auto unit = static_cast<size_t>(number);
  Sum& sum = sums_[unit];
  const at::Tensor on_host = memory_of(unit);
  host_.link.follow_current();
  host_.link.copy_down(values, on_host);
  sum.arrival = host_.link.downs();
  sum.has_values = true;
  sum.is_taken = false;
  leaving_.push_back({values, sum.arrival, unit});
  leaving_bytes_ += static_cast<int64_t>(values.nbytes());
  while (leaving_.size() > 1 && leaving_bytes_ > kLeavingSums * largest_bytes_) let_go_of_oldest();
}

// Its memory serves the current stream next.
void DeviceSums::let_go_of_oldest() {
  {
    const WaitPlace place("gradient's memory");
    host_.link.lead_current(leaving_.front().arrival);
  }
  write(sums_[leaving_.front().unit]);
  leaving_bytes_ -= static_cast<int64_t>(leaving_.front().memory.nbytes());
  leaving_.pop_front();
}

void DeviceSums::discard() {
  while (!leaving_.empty()) let_go_of_oldest();
  for (Sum& sum : sums_) {
    sum.has_values = sum.is_taken = false;
    if (sum.numel >= 0 && sum.is_on_disk()) write(sum);
  }
}

}  // namespace zero::detail
