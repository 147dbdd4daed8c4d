#include "optim/gradient_squares.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "optim/fused_operators.h"
#include "optim/kernel_passes.h"

namespace zero {

void GradientSquares::add(const OptimizerShard& shard, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> partials;
  for (const ShardSegment& segment : shard.segments) {
    const int64_t counted = segment.counted_end - segment.counted_begin;
    if (counted == 0) continue;
    const at::Tensor part = gradient.narrow(0, segment.counted_begin, counted);
    partials.push_back(part.is_cpu() ? kernel_passes::sums_of_squares(part)
                                     : fused_operators::sums_of_squares(part));
  }
  partials_[shard.unit] = std::move(partials);
}

const std::vector<at::Tensor>* GradientSquares::of(int unit) const {
  const auto found = partials_.find(unit);
  return found == partials_.end() ? nullptr : &found->second;
}

}  // namespace zero
