// The global gradient norm and what clipping makes of it.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "compute/host_copies.h"
#include "optim/fused_operators.h"
#include "optim/gradient_squares.h"
#include "optim/kernel_passes.h"
#include "rules/check.h"
#include "zero/error.h"

namespace zero {
namespace {

at::Tensor on_device(const std::vector<int64_t>& numbers, c10::Device device) {
  return detail::copied_to_device(at::tensor(numbers, at::kLong), device);
}

double total(const at::Tensor& partials) {
  double sum = 0;
  if (partials.numel() > 0) kernel_passes::add_partials(partials.view({-1, 1}), &sum);
  return sum;
}

/// Of sums_of_squares() of all segments: fp64 [1] on their device, segment by segment, as on CPU.
at::Tensor fused_total(const std::vector<at::Tensor>& sums) {
  std::vector<int64_t> ends;
  for (const at::Tensor& partials : sums) ends.push_back((ends.empty() ? 0 : ends.back()) + partials.numel());
  const c10::Device device = sums.front().device();
  const at::Tensor totals =
      fused_operators::ordered_totals(at::cat(sums).view({-1, 1}), on_device(ends, device));
  return fused_operators::ordered_totals(totals, on_device({std::ssize(ends)}, device)).view({1});
}

std::vector<at::Tensor> fused_squares(const std::vector<at::Tensor>& segments) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& segment : segments) sums.push_back(fused_operators::sums_of_squares(segment));
  return sums;
}

/// Of all used segments, read back together.
double device_sum_of_squares(const std::vector<at::Tensor>& segments) {
  if (segments.empty()) return 0;
  if (fused_operators::exist_for(segments.front().device()))
    return fused_total(fused_squares(segments)).item<double>();
  std::vector<at::Tensor> sums;
  sums.reserve(segments.size());
  for (const auto& segment : segments) sums.push_back(segment.to(at::kDouble).square().sum());
  return at::stack(sums).sum().item<double>();
}

/// use(gradient's elements that this rank counts) for each used segment that has some. What it is given is
/// lent until `leases` end; what is on disk until the next one comes.
template <class Use>
void for_each_counted(StateStore& states, std::span<const OptimizerShard> shards, std::span<const char> used,
                      std::vector<StateStore::Lease>& leases, Use use) {
  for (const OptimizerShard& shard : shards) {
    if (states.is_on_disk(shard.unit, kGradientState)) leases.clear();
    leases.push_back(states.lend(shard.unit, {kGradientState}, StateStore::Use::Read));
    const at::Tensor& gradient = leases.back()[kGradientState];
    for (const ShardSegment& segment : shard.segments) {
      const int64_t counted = segment.counted_end - segment.counted_begin;
      if ((!used.empty() && !used[segment.parameter]) || counted == 0) continue;
      use(gradient.narrow(0, segment.counted_begin, counted));
    }
  }
}

}  // namespace

ClipResult clip_result(double squared_norm, double max_norm) {
  check(is_finite_non_negative(max_norm), "gradient clipping", "max_norm", max_norm, kFiniteNonNegative);
  ClipResult result;
  result.norm_before = std::sqrt(squared_norm);
  result.coefficient = kernels::clip_coefficient(result.norm_before, max_norm);
  result.norm_after = result.norm_before * result.coefficient;
  return result;
}

double squared_norm(StateStore& states, std::span<const OptimizerShard> shards, double scale,
                    std::span<const char> used, const GradientSquares* left) {
  require(std::isfinite(scale), ErrorKind::Usage, "squared_norm",
          "scale is " + to_text(scale) + ", expected finite");
  at::NoGradGuard no_grad;
  double sum = 0;
  std::vector<StateStore::Lease> leases;  // until all is added up
  std::vector<at::Tensor> parts;          // on a device
  for (size_t s = 0; s < shards.size(); ++s) check_shard(states, shards[s], s, static_cast<int>(used.size()));
  for (const OptimizerShard& shard : shards) {
    if (const auto* known = left != nullptr ? left->of(shard.unit) : nullptr) {
      for (const at::Tensor& partials : *known) sum += total(partials);
      continue;
    }
    for_each_counted(states, {&shard, 1}, used, leases, [&](const at::Tensor& part) {
      if (part.is_cpu())
        sum += total(kernel_passes::sums_of_squares(part));
      else
        parts.push_back(part);
    });
  }
  return (sum + device_sum_of_squares(parts)) * scale * scale;
}

at::Tensor squared_norm_on_device(StateStore& states, std::span<const OptimizerShard> shards, double scale,
                                  c10::Device device, const GradientSquares* left) {
  at::NoGradGuard no_grad;
  std::vector<StateStore::Lease> leases;
  std::vector<at::Tensor> sums;
  for (const OptimizerShard& shard : shards) {
    if (const auto* known = left != nullptr ? left->of(shard.unit) : nullptr) {
      sums.insert(sums.end(), known->begin(), known->end());
      continue;
    }
    for_each_counted(states, {&shard, 1}, {}, leases, [&](const at::Tensor& part) {
      require(!part.is_cpu(), ErrorKind::Internal, "unit " + std::to_string(shard.unit),
              "its gradient has left the device without its squares");
      sums.push_back(fused_operators::sums_of_squares(part));
    });
  }
  if (sums.empty()) return at::zeros({1}, at::TensorOptions(device).dtype(at::kDouble));
  return fused_total(sums).mul_(scale).mul_(scale);
}

}  // namespace zero
