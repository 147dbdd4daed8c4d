#pragma once
// What a simulated machine can do: the figures that turn work into time. Read from JSON (configs/devices/).

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "virtual/clock.h"
#include "zero/dtype.h"

namespace zero::virtual_device {

/// One connection: a message of n bytes takes latency_ns + n / bytes_per_s.
struct Link {
  double bytes_per_s = 0;
  int64_t latency_ns = 0;

  Picoseconds time_of(double bytes) const;
};

struct DeviceDescription {
  std::string name, source;             // where the figures are from
  int64_t memory_bytes = 0;             // capacity
  std::map<Dtype, double> flops_per_s;  // of matrix products, by the factors' type; f32 is always there
  double memory_bytes_per_s = 0;
  Link host_to_device, device_to_host, device_to_device;
  int64_t launch_ns = 0;            // of the host's time for each kernel or copy
  int64_t kernel_ns = 0;            // the least that a kernel takes
  Link within_host, between_hosts;  // network between ranks, for collectives

  /// A type without figures of its own has those of f32.
  double rate_of(Dtype dtype) const;
  /// Compute and memory traffic go on at the same time: the longer of the two, at least kernel_ns.
  Picoseconds kernel_time(double flops, Dtype dtype, double bytes) const;
};

/// Throws Corrupt, naming the place and the value, for what is no JSON, a member that is missing, unknown or
/// of another type, or a figure out of bounds; rates are positive and at most 1e21, times at most a second.
DeviceDescription description_from_text(std::string_view text, std::string_view place);
/// The same; throws Io for a file that cannot be read or has more than a megabyte.
DeviceDescription read_description(const std::filesystem::path& path);

}  // namespace zero::virtual_device
