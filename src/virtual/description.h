#pragma once
// What a simulated machine can do: the figures that turn work into time. Read from JSON (configs/devices/).

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "virtual/clock.h"
#include "zero/dtype.h"

namespace zero::virtual_device {

/// One connection: a message of n bytes takes latency_ns + n / bytes_per_s.
struct Link {
  double bytes_per_s = 0;
  int64_t latency_ns = 0;

  Picoseconds time_of(double bytes) const;
};

/// How long an operator takes for some work, as it was measured: straight lines between the points, the first
/// one's time for less, in proportion to the last two for more.
class TimeCurve {
 public:
  struct Point {
    double work = 0, ns = 0;
    bool operator==(const Point&) const = default;
  };
  TimeCurve() = default;
  /// At least one point, each with more work and no less time than the one before.
  explicit TimeCurve(std::vector<Point> points) : points_(std::move(points)) {}
  Picoseconds time_of(double work) const;
  const std::vector<Point>& points() const { return points_; }

 private:
  std::vector<Point> points_;
};

/// One call of an operator.
struct KernelWork {
  std::string_view name;  // "aten::mm", "copy"
  double flops = 0, bytes = 0;
  Dtype dtype = Dtype::f32;  // of the first operand
};

/// The curve of operators that have none of their own, over bytes.
inline constexpr std::string_view kOtherOperators = "*";

struct DeviceDescription {
  std::string name, source;             // where the figures are from
  int64_t memory_bytes = 0;             // capacity
  std::map<Dtype, double> flops_per_s;  // of matrix products, by the factors' type; f32 is always there
  double memory_bytes_per_s = 0;
  Link host_to_device, device_to_host, device_to_device;
  int64_t launch_ns = 0;  // of the host's time for each kernel or copy
  int64_t kernel_ns = 0;  // the least that a kernel takes
  // Network between ranks, for collectives: a rank's connection to others of its host, and one of the
  // network cards that the ranks of a host share.
  Link within_host, between_hosts;
  int64_t network_cards = 1;  // of a host
  // The device is the host itself, a CPU: kernels, copies and collectives take the host's time.
  bool host_computes = false;
  // Measured times by operator and type, over its operations where it has any (products, attention), else
  // over its bytes. What has no curve, and no kOtherOperators either, takes kernel_time()'s.
  std::map<std::string, std::map<Dtype, TimeCurve>, std::less<>> operators;

  /// A type without figures of its own has those of f32.
  double rate_of(Dtype dtype) const;
  /// Compute and memory traffic go on at the same time: the longer of the two, at least kernel_ns.
  Picoseconds kernel_time(double flops, Dtype dtype, double bytes) const;
  /// As measured where it was; a type that was not measured takes f32's curve.
  Picoseconds time_of(const KernelWork& work) const;
  /// The curve that time_of() takes; null: none.
  const TimeCurve* curve_of(const KernelWork& work) const;
};

/// Throws Corrupt, naming the place and the value, for what is no JSON, a member that is missing, unknown or
/// of another type, or a figure out of bounds; rates are positive and at most 1e21, times at most a second.
DeviceDescription description_from_text(std::string_view text, std::string_view place);
/// The same; throws Io for a file that cannot be read or has more than a megabyte.
DeviceDescription read_description(const std::filesystem::path& path);
/// What description_from_text() reads.
std::string to_text(const DeviceDescription& description);

}  // namespace zero::virtual_device
