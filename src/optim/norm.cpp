// The global gradient norm and what clipping makes of it.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "compute/parallel.h"
#include "optim/rule_memory.h"
#include "rules/check.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr int64_t kBlock = kSumBlockNumel;

double cpu_sum_of_squares(const at::Tensor& gradient, int64_t begin, int64_t end) {
  const auto type = element_of(gradient.scalar_type());
  const char* const base =
      static_cast<const char*>(gradient.const_data_ptr()) + begin * gradient.element_size();
  const int64_t count = end - begin, blocks = (count + kBlock - 1) / kBlock;
  const at::Tensor partials = at::empty({blocks}, at::kDouble);
  double* const sums = partials.mutable_data_ptr<double>();
  parallel_over(partials, 1, [&](int64_t first, int64_t last) {
    const int64_t from = first * kBlock, length = std::min(last * kBlock, count) - from;
    kernels::best_kernels().sums_of_squares(base + from * gradient.element_size(), type, length, kBlock,
                                            sums + first);
  });
  double sum = 0;
  for (int64_t block = 0; block < blocks; ++block) sum += sums[block];
  return sum;
}

/// One number on the device for every used segment; read back together.
double device_sum_of_squares(const std::vector<at::Tensor>& segments) {
  if (segments.empty()) return 0;
  std::vector<at::Tensor> sums;
  sums.reserve(segments.size());
  for (const auto& segment : segments) sums.push_back(segment.to(at::kDouble).square().sum());
  return at::stack(sums).sum().item<double>();
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
      if (gradient.is_cpu()) {
        sum += cpu_sum_of_squares(gradient, segment.counted_begin, segment.counted_end);
      } else {
        on_device.push_back(gradient.narrow(0, segment.counted_begin, counted));
      }
    }
  }
  return (sum + device_sum_of_squares(on_device)) * scale * scale;
}

}  // namespace zero
