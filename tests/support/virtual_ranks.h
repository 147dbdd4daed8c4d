#pragma once
// Ranks whose mesh is of virtual devices, one a process.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/ranks.h"
#include "support/virtual_machine.h"
#include "virtual/transport.h"

namespace zero::virtual_device::testing {

/// Of the devices of ranks that are started next: VirtualDeviceOptions::left_out_waits.
inline std::vector<std::string>& left_out_waits() {
  static std::vector<std::string> places;
  return places;
}

/// This process's device, made when first asked for: then the description counts. Traced.
inline VirtualDevices& own_devices(const char* description = kPlainMachine) {
  static const auto devices = [&] {
    // The first call in a forked process makes LibTorch's thread pool anew: not autograd's threads, all at
    // once.
    at::set_num_threads(at::get_num_threads());
    VirtualDeviceOptions options;
    options.description = description_from_text(description, "description");
    options.trace = true;
    options.left_out_waits = left_out_waits();
    return std::make_unique<VirtualDevices>(options);
  }();
  return *devices;
}

inline zero::testing::RankOptions on_virtual_devices(const char* description = kPlainMachine) {
  zero::testing::RankOptions options;
  options.mesh.device = c10::Device(c10::DeviceType::PrivateUse1, 0);
  options.mesh.own_transport = [description](const detail::TransportOptions& transport) {
    own_devices(description);
    return make_virtual_transport(transport);
  };
  return options;
}

inline void expect_no_faults() {
  own_devices().synchronize();
  for (const Fault& fault : own_devices().faults())
    ADD_FAILURE() << to_string(fault.kind) << ": " << fault.text;
  own_devices().clear_faults();
}

}  // namespace zero::virtual_device::testing
