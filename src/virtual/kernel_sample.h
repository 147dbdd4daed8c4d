#pragma once
// How long this host's kernels really took, and the curves of a description that follow.

#include <functional>
#include <map>
#include <span>
#include <string>

#include "virtual/description.h"

namespace zero::virtual_device {

struct KernelSample {
  std::string name;
  double flops = 0, bytes = 0;  // as simulated time counts them
  Dtype dtype = Dtype::f32;     // of the first operand
  double host_ns = 0;

  double work() const { return flops > 0 ? flops : bytes; }
};

/// DeviceDescription::operators from such samples: a point for each half of a factor of two of work, at the
/// mean work and the mean time, times that do not fall; and of all operators without operations together,
/// kOtherOperators.
std::map<std::string, std::map<Dtype, TimeCurve>, std::less<>> curves_of(
    std::span<const KernelSample> samples);

}  // namespace zero::virtual_device
