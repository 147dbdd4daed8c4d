#include "virtual/kernel_sample.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace zero::virtual_device {
namespace {

struct Bin {
  double work = 0, ns = 0, count = 0;
};
using Bins = std::map<int, Bin>;  // by half powers of two

void add_sample(Bins& bins, const KernelSample& sample) {
  Bin& bin = bins[static_cast<int>(std::floor(2 * std::log2(std::max(sample.work(), 1.0))))];
  bin.work += sample.work();
  bin.ns += sample.host_ns;
  ++bin.count;
}

TimeCurve curve_through(const Bins& bins) {
  std::vector<TimeCurve::Point> points;
  for (const auto& [half, bin] : bins) {
    const double before = points.empty() ? 0 : points.back().ns;
    points.push_back({bin.work / bin.count, std::max(before, bin.ns / bin.count)});
  }
  return TimeCurve(std::move(points));
}

}  // namespace

std::map<std::string, std::map<Dtype, TimeCurve>, std::less<>> curves_of(
    std::span<const KernelSample> samples) {
  std::map<std::string, std::map<Dtype, Bins>> bins;
  for (const KernelSample& sample : samples) {
    add_sample(bins[sample.name][sample.dtype], sample);
    if (sample.flops == 0) add_sample(bins[std::string(kOtherOperators)][sample.dtype], sample);
  }
  std::map<std::string, std::map<Dtype, TimeCurve>, std::less<>> curves;
  for (const auto& [name, types] : bins)
    for (const auto& [dtype, own] : types) curves[name].emplace(dtype, curve_through(own));
  return curves;
}

}  // namespace zero::virtual_device
