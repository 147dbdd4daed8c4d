#pragma once
// Virtual devices for tests, with the figures of a machine that is easy to calculate with.

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <string>
#include <vector>

#include "virtual/virtual_device.h"

namespace zero::virtual_device::testing {

/// 100 TFLOP/s, 2 TB/s of memory, 50 GB/s to the host and back, 4 us a launch.
inline constexpr const char* kPlainMachine = R"({
  "name": "plain", "source": "made up", "memory_bytes": 268435456,
  "flops_per_s": {"f32": 100e12, "bf16": 200e12}, "memory_bytes_per_s": 2e12,
  "host_to_device": {"bytes_per_s": 50e9, "latency_ns": 0}, "device_to_host": {"bytes_per_s": 50e9, "latency_ns": 0},
  "device_to_device": {"bytes_per_s": 100e9, "latency_ns": 0}, "launch_ns": 4000, "kernel_ns": 1000,
  "within_host": {"bytes_per_s": 100e9, "latency_ns": 1000},
  "between_hosts": {"bytes_per_s": 10e9, "latency_ns": 5000}})";

inline VirtualDeviceOptions plain_options() {
  VirtualDeviceOptions options;
  options.devices = 2;
  options.description = description_from_text(kPlainMachine, "plain machine");
  return options;
}

/// A test with two virtual devices that must have no faults at its end.
class OnVirtualDevices : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fault_texts(), std::vector<std::string>{}); }

  /// "KIND: TEXT" of the faults so far, which are then forgotten.
  std::vector<std::string> fault_texts() {
    std::vector<std::string> texts;
    for (const Fault& fault : devices.faults())
      texts.push_back(std::string(to_string(fault.kind)) + ": " + fault.text);
    devices.clear_faults();
    return texts;
  }

  /// Exactly one kind of fault was found, and its first text holds `parts`.
  void expect_faults(FaultKind kind, const std::vector<std::string>& parts) {
    const std::vector<Fault> faults = devices.faults();
    ASSERT_FALSE(faults.empty()) << "no fault; expected " << to_string(kind);
    for (const Fault& fault : faults) EXPECT_EQ(to_string(fault.kind), to_string(kind)) << fault.text;
    for (const std::string& part : parts)
      EXPECT_NE(faults[0].text.find(part), std::string::npos)
          << "no \"" << part << "\" in: " << faults[0].text;
    devices.clear_faults();
  }

  torch::TensorOptions on(c10::Device where) const { return torch::TensorOptions(where); }

  VirtualDevices devices{plain_options()};
  c10::Device device = devices.device();
  c10::impl::VirtualGuardImpl guard{device.type()};
  c10::Stream main = guard.getStream(device), side = guard.getNewStream(device);

  /// What is given to `to` from now on comes after all that `from` was given.
  void order(c10::Stream from, c10::Stream to) {
    c10::Event event(device.type());
    event.record(from);
    event.block(to);
  }
};

}  // namespace zero::virtual_device::testing
