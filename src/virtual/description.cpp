#include "virtual/description.h"

#include <algorithm>
#include <array>
#include <cmath>
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
constexpr int64_t kMostNetworkCards = 1025;
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

TimeCurve curve(const JsonPlace& at) {
  constexpr double kMostWork = 1e21;
  const nlohmann::json& points = at.value();
  if (!points.is_array() || points.empty()) at.expected("a list of [work, ns]");
  std::vector<TimeCurve::Point> read;
  for (const nlohmann::json& point : points) {
    const bool is_pair =
        point.is_array() && point.size() == 2 && point[0].is_number() && point[1].is_number();
    if (!is_pair) at.expected("a list of [work, ns]");
    const TimeCurve::Point next{point[0].get<double>(), point[1].get<double>()};
    const TimeCurve::Point before = read.empty() ? TimeCurve::Point{-1, 0} : read.back();
    if (!(next.work > before.work && next.work <= kMostWork && next.ns >= before.ns && next.ns <= 1e12))
      at.expected("points with more work and no less time than the one before");
    read.push_back(next);
  }
  return TimeCurve(std::move(read));
}

std::map<std::string, std::map<Dtype, TimeCurve>, std::less<>> operators(const JsonPlace& at) {
  std::map<std::string, std::map<Dtype, TimeCurve>, std::less<>> found;
  at.require_object();
  for (const auto& [name, types] : at.value().items()) {
    const JsonPlace of = at[name];
    std::array<std::string_view, kRateTypes.size()> names;
    for (size_t i = 0; i < names.size(); ++i) names[i] = kRateTypes[i].first;
    know_members(of, names);
    for (const auto& [type, dtype] : kRateTypes)
      if (const JsonPlace points = of[type]; !points.is_null()) found[name].emplace(dtype, curve(points));
    if (!found.contains(name)) of.expected("the points of at least one type");
  }
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

Picoseconds TimeCurve::time_of(double work) const {
  constexpr double kPicosecondsOfNanosecond = 1e3;
  const auto whole = [](double ns) { return std::llround(std::min(ns, 1e15) * kPicosecondsOfNanosecond); };
  if (points_.size() == 1 || work <= points_.front().work) return whole(points_.front().ns);
  auto after = std::upper_bound(points_.begin(), points_.end(), work,
                                [](double value, const Point& point) { return value < point.work; });
  if (after == points_.end()) --after;
  const Point low = *std::prev(after), high = *after;
  return whole(low.ns + (work - low.work) * (high.ns - low.ns) / (high.work - low.work));
}

const TimeCurve* DeviceDescription::curve_of(const KernelWork& work) const {
  auto found = operators.find(work.name);
  if (found == operators.end() && work.flops == 0) found = operators.find(kOtherOperators);
  if (found == operators.end()) return nullptr;
  auto curve = found->second.find(work.dtype);
  if (curve == found->second.end()) curve = found->second.find(Dtype::f32);
  return curve != found->second.end() ? &curve->second : nullptr;
}

Picoseconds DeviceDescription::time_of(const KernelWork& work) const {
  const TimeCurve* const curve = curve_of(work);
  return curve != nullptr ? curve->time_of(work.flops > 0 ? work.flops : work.bytes)
                          : kernel_time(work.flops, work.dtype, work.bytes);
}

DeviceDescription description_from_text(std::string_view text, std::string_view place) {
  const nlohmann::json document = parse_json(text, place);
  const JsonPlace at(document, std::string(place));
  know_members(at, std::array<std::string_view, 16>{"name", "source", "memory_bytes", "flops_per_s",
                                                    "memory_bytes_per_s", "host_to_device", "device_to_host",
                                                    "device_to_device", "launch_ns", "kernel_ns",
                                                    "within_host", "between_hosts", "comment",
                                                    "network_cards", "host_computes", "operators"});
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
  if (const JsonPlace cards = at["network_cards"]; !cards.is_null())
    device.network_cards = cards.integer(kMostNetworkCards);
  if (device.network_cards == 0) at["network_cards"].expected("a number above 0");
  device.host_computes = at["host_computes"].boolean_or(false);
  if (const JsonPlace given = at["operators"]; !given.is_null()) device.operators = operators(given);
  return device;
}

std::string to_text(const DeviceDescription& description) {
  using Json = nlohmann::ordered_json;
  const DeviceDescription& d = description;
  const auto of_link = [](const Link& link) {
    return Json{{"bytes_per_s", link.bytes_per_s}, {"latency_ns", link.latency_ns}};
  };
  Json rates = Json::object(), measured = Json::object();
  for (const auto& [name, dtype] : kRateTypes) {
    if (const auto found = d.flops_per_s.find(dtype); found != d.flops_per_s.end())
      rates[std::string(name)] = found->second;
    for (const auto& [op, curves] : d.operators)
      if (const auto found = curves.find(dtype); found != curves.end())
        for (const TimeCurve::Point& point : found->second.points())
          measured[op][std::string(name)].push_back({point.work, point.ns});
  }
  Json json = {{"name", d.name},
               {"source", d.source},
               {"memory_bytes", d.memory_bytes},
               {"flops_per_s", rates},
               {"memory_bytes_per_s", d.memory_bytes_per_s},
               {"host_to_device", of_link(d.host_to_device)},
               {"device_to_host", of_link(d.device_to_host)},
               {"device_to_device", of_link(d.device_to_device)},
               {"launch_ns", d.launch_ns},
               {"kernel_ns", d.kernel_ns},
               {"within_host", of_link(d.within_host)},
               {"between_hosts", of_link(d.between_hosts)},
               {"network_cards", d.network_cards},
               {"host_computes", d.host_computes},
               {"operators", measured}};
  return json.dump() + "\n";
}

DeviceDescription read_description(const std::filesystem::path& path) {
  const std::string text = read_small_file(path, "give the description of a device, as in configs/devices/");
  return description_from_text(text, path.string());
}

}  // namespace zero::virtual_device
