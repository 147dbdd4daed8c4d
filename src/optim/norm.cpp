// The global gradient norm and what clipping makes of it.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "optim/fused_operators.h"
#include "optim/kernel_passes.h"
#include "rules/check.h"
#include "zero/error.h"

namespace zero {
namespace {

double total(const at::Tensor& partials) {
  double sum = 0;
  if (partials.numel() > 0) kernel_passes::add_partials(partials.view({-1, 1}), &sum);
  return sum;
}

/// Of all used segments, read back together. By fused operators the bits are the CPU's.
double device_sum_of_squares(const std::vector<at::Tensor>& segments) {
  if (segments.empty()) return 0;
  std::vector<at::Tensor> sums;
  sums.reserve(segments.size());
  if (!fused_operators::exist_for(segments.front().device())) {
    for (const auto& segment : segments) sums.push_back(segment.to(at::kDouble).square().sum());
    return at::stack(sums).sum().item<double>();
  }
  for (const auto& segment : segments) sums.push_back(fused_operators::sums_of_squares(segment));
  const at::Tensor partials = at::cat(sums).cpu();
  double sum = 0;
  int64_t begin = 0;
  for (const at::Tensor& of : sums) {  // segment by segment, as on CPU
    sum += total(partials.narrow(0, begin, of.numel()));
    begin += of.numel();
  }
  return sum;
}

}  // namespace

ClipResult clip_result(double squared_norm, double max_norm) {
  check(is_finite_non_negative(max_norm), "gradient clipping", "max_norm", max_norm, kFiniteNonNegative);
  ClipResult result;
  result.norm_before = std::sqrt(squared_norm);
  if (max_norm > 0 && std::isfinite(result.norm_before)) {
    result.coefficient = std::min(1.0, max_norm / (result.norm_before + 1e-6));
  }
  result.norm_after = result.norm_before * result.coefficient;
  return result;
}

double squared_norm(StateStore& states, std::span<const OptimizerShard> shards, double scale,
                    std::span<const char> used) {
  require(std::isfinite(scale), ErrorKind::Usage, "squared_norm",
          "scale is " + to_text(scale) + ", expected finite");
  at::NoGradGuard no_grad;
  double sum = 0;
  std::vector<StateStore::Lease> leases;  // until all is added up
  std::vector<at::Tensor> on_device;
  for (size_t s = 0; s < shards.size(); ++s) {
    check_shard(states, shards[s], s, static_cast<int>(used.size()));
    leases.push_back(states.lend(shards[s].unit, {kGradientState}, StateStore::Use::Read));
    const at::Tensor& gradient = leases.back()[kGradientState];
    for (const auto& segment : shards[s].segments) {
      const int64_t counted = segment.counted_end - segment.counted_begin;
      if (!used[segment.parameter] || counted == 0) continue;
      const at::Tensor part = gradient.narrow(0, segment.counted_begin, counted);
      if (gradient.is_cpu()) {
        sum += total(kernel_passes::sums_of_squares(part));
      } else {
        on_device.push_back(part);
      }
    }
  }
  return (sum + device_sum_of_squares(on_device)) * scale * scale;
}

}  // namespace zero
