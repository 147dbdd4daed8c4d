#include "sharding/device_sums.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "compute/memory_purpose.h"
#include "compute/wait_place.h"

namespace zero::detail {
namespace {

constexpr int64_t kLeavingSums = 2;  // of the largest unit, whose memory waits for their copies

}  // namespace

DeviceSums::DeviceSums(StateStore& states, std::string_view kind, std::span<const int> units,
                       std::span<const int64_t> numels, const at::TensorOptions& options)
    : host_(*states.host()), options_(options) {
  if (!units.empty()) sums_.resize(static_cast<size_t>(*std::max_element(units.begin(), units.end())) + 1);
  for (size_t i = 0; i < units.size(); ++i) {
    Sum& sum = sums_[static_cast<size_t>(units[i])];
    sum.on_host = host_.memory.zeros(numels[i], c10::typeMetaToScalarType(options.dtype()));
    largest_bytes_ = std::max(largest_bytes_, static_cast<int64_t>(sum.on_host.nbytes()));
    states.adopt(units[i], kind, sum.on_host, [this, unit = static_cast<size_t>(units[i])] {
      const WaitPlace place("gradient from the device");
      sums_[unit].arrival.wait();
    });
  }
}

bool DeviceSums::has(int unit) const {
  return unit < std::ssize(sums_) && sums_[static_cast<size_t>(unit)].on_host.defined();
}

at::Tensor DeviceSums::take(int unit) {
  Sum& sum = sums_[static_cast<size_t>(unit)];
  const MemoryPurposeScope purpose(MemoryPurpose::Gradients);
  const at::Tensor memory = at::empty(sum.on_host.sizes(), options_);
  if (!sum.has_values) return memory;
  host_.link.follow_current();  // which may have used the memory before
  const WaitPlace place("gradient to the device");
  host_.link.copy_up(sum.on_host, memory, &sum.arrival);
  Transfer copied = host_.link.ups();
  host_.link.lead_current(copied);
  return memory;
}

void DeviceSums::put(int unit, const at::Tensor& sum) {
  Sum& kept = sums_[static_cast<size_t>(unit)];
  host_.link.follow_current();
  host_.link.copy_down(sum, kept.on_host);
  kept.arrival = host_.link.downs();
  kept.has_values = true;
  leaving_.push_back({sum, kept.arrival});
  leaving_bytes_ += static_cast<int64_t>(sum.nbytes());
  while (leaving_.size() > 1 && leaving_bytes_ > kLeavingSums * largest_bytes_) let_go_of_oldest();
}

// Its memory serves the current stream next.
void DeviceSums::let_go_of_oldest() {
  const WaitPlace place("gradient's memory");
  host_.link.lead_current(leaving_.front().arrival);
  leaving_bytes_ -= static_cast<int64_t>(leaving_.front().memory.nbytes());
  leaving_.pop_front();
}

void DeviceSums::discard() {
  while (!leaving_.empty()) let_go_of_oldest();
  for (Sum& sum : sums_) sum.has_values = false;
}

}  // namespace zero::detail
