#include "models/parallel_linear_loss.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>

#include <algorithm>
#include <vector>

#include "zero/model_shape.h"
#include "zero/recompute.h"
#include "zero/tensor_parallel.h"

namespace zero::detail {
namespace {

/// Of some rows, [rows]. Backward makes their logits again.
at::Tensor losses_of(const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& targets,
                     const ParallelLinearLossOptions& options) {
  const at::ScalarType wide = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return recompute(
      [=](const at::Tensor& x) {
        const at::Tensor logits = at::linear(x, weight, options.bias).to(wide);
        return at::cross_entropy_loss(logits, targets, {}, at::Reduction::None, options.ignore_index,
                                      options.label_smoothing);
      },
      rows, {.name = "linear_cross_entropy", .preserve_random_state = false});
}

}  // namespace

at::Tensor parallel_linear_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                const ParallelLinearLossOptions& options) {
  const at::Tensor flat_targets = targets.reshape({-1});
  const int64_t rows = flat_targets.size(0);
  const int64_t most = std::max<int64_t>(1, kLogitsAtATime / std::max<int64_t>(1, weight.size(0)));
  const int64_t step = options.rows_at_a_time > 0 ? options.rows_at_a_time : most;
  if (rows <= step || !is_tensor_parallel(weight))
    return at::cross_entropy_loss(at::linear(hidden, weight, options.bias).flatten(0, -2), flat_targets, {},
                                  options.reduction, options.ignore_index, options.label_smoothing);
  const at::Tensor whole = gathered(hidden).flatten(0, -2);
  std::vector<at::Tensor> parts;
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    parts.push_back(
        losses_of(whole.narrow(0, row, count), weight, flat_targets.narrow(0, row, count), options));
  }
  const at::Tensor losses = at::cat(parts);
  if (options.reduction == at::Reduction::None) return losses;
  // Many fp32 losses are added up in fp64 where that is cheap.
  const at::Tensor total = losses.is_cpu() ? losses.sum(at::kDouble) : losses.sum();
  const at::Tensor counted = flat_targets.ne(options.ignore_index).sum();
  return (options.reduction == at::Reduction::Mean ? total / counted : total).to(losses.scalar_type());
}

}  // namespace zero::detail
