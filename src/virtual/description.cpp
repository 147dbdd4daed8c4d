#include "virtual/description.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/files.h"
#include "base/strict_json.h"
#include "zero/error.h"

namespace zero::virtual_device {
namespace {

constexpr double kMostRate = 1e21;
constexpr int64_t kMostNanoseconds = 1'000'000'001;
constexpr int64_t kMostMemoryBytes = int64_t{1} << 50;
constexpr size_t kMostFileBytes = 1 << 20;
constexpr std::array<std::pair<std::string_view, Dtype>, 6> kRateTypes{{{"f64", Dtype::f64},
                                                                        {"f32", Dtype::f32},
                                                                        {"bf16", Dtype::bf16},
                                                                        {"f16", Dtype::f16},
                                                                        {"f8_e4m3", Dtype::f8_e4m3},
                                                                        {"f8_e5m2", Dtype::f8_e5m2}}};

double rate(const JsonPlace& at) {
  const double value = at.value().is_number() ? at.value().get<double>() : 0;
  if (!(value > 0 && value <= kMostRate)) at.expected("a number above 0 and at most 1e21");
  return value;
}

int64_t nanoseconds(const JsonPlace& at) { return at.integer(kMostNanoseconds); }

template <size_t n>
void know_members(const JsonPlace& at, const std::array<std::string_view, n>& names) {
  at.require_object();
  for (const auto& [key, value] : at.value().items())
    require(std::find(names.begin(), names.end(), key) != names.end(), ErrorKind::Corrupt, at.place(),
            "unknown member \"" + key + "\"", "see configs/devices/ for what a device has");
}

Link link(const JsonPlace& at) {
  know_members(at, std::array<std::string_view, 2>{"bytes_per_s", "latency_ns"});
  return {rate(at["bytes_per_s"]), nanoseconds(at["latency_ns"])};
}

std::map<Dtype, double> rates(const JsonPlace& at) {
  std::array<std::string_view, kRateTypes.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kRateTypes[i].first;
  know_members(at, names);
  std::map<Dtype, double> found;
  for (const auto& [name, dtype] : kRateTypes)
    if (const JsonPlace value = at[name]; !value.is_null() || dtype == Dtype::f32) found[dtype] = rate(value);
  return found;
}

Picoseconds picoseconds(double seconds) { return std::llround(std::min(seconds * 1e12, 1e18)); }

}  // namespace

Picoseconds Link::time_of(double bytes) const { return latency_ns * 1000 + picoseconds(bytes / bytes_per_s); }

double DeviceDescription::rate_of(Dtype dtype) const {
  const auto found = flops_per_s.find(dtype);
  return found != flops_per_s.end() ? found->second : flops_per_s.at(Dtype::f32);
}

Picoseconds DeviceDescription::kernel_time(double flops, Dtype dtype, double bytes) const {
  const Picoseconds compute = flops > 0 ? picoseconds(flops / rate_of(dtype)) : 0;
  return std::max({kernel_ns * 1000, compute, picoseconds(bytes / memory_bytes_per_s)});
}

DeviceDescription description_from_text(std::string_view text, std::string_view place) {
  const nlohmann::json document = parse_json(text, place);
  const JsonPlace at(document, std::string(place));
  know_members(at, std::array<std::string_view, 13>{"name", "source", "memory_bytes", "flops_per_s",
                                                    "memory_bytes_per_s", "host_to_device", "device_to_host",
                                                    "device_to_device", "launch_ns", "kernel_ns",
                                                    "within_host", "between_hosts", "comment"});
  DeviceDescription device;
  device.name = at["name"].string();
  device.source = at["source"].string();
  device.memory_bytes = at["memory_bytes"].integer(kMostMemoryBytes);
  if (device.memory_bytes == 0) at["memory_bytes"].expected("a capacity above 0");
  device.flops_per_s = rates(at["flops_per_s"]);
  device.memory_bytes_per_s = rate(at["memory_bytes_per_s"]);
  device.host_to_device = link(at["host_to_device"]);
  device.device_to_host = link(at["device_to_host"]);
  device.device_to_device = link(at["device_to_device"]);
  device.launch_ns = nanoseconds(at["launch_ns"]);
  device.kernel_ns = nanoseconds(at["kernel_ns"]);
  device.within_host = link(at["within_host"]);
  device.between_hosts = link(at["between_hosts"]);
  return device;
}

DeviceDescription read_description(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_errno(path, "open");
  std::string text(kMostFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) fail_errno(path, "read");
  text.resize(static_cast<size_t>(file.gcount()));
  require(text.size() <= kMostFileBytes, ErrorKind::Io, path.string(), "is larger than a megabyte",
          "give the description of a device, as in configs/devices/");
  return description_from_text(text, path.string());
}

}  // namespace zero::virtual_device
