#pragma once
// Times of what a device does.

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

namespace zero::detail {

inline void wait_for(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

/// Seconds that `work` keeps the device, or the CPU, busy.
template <class Work>
double seconds_of(c10::Device device, Work work) {
  using Clock = std::chrono::steady_clock;
  wait_for(device);
  const auto begin = Clock::now();
  work();
  wait_for(device);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace zero::detail
