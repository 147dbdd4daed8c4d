#include "models/head_loss.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nll_loss.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "zero/model_shape.h"

namespace zero::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kIgnored = -100, kLineBytes = 64;
// On a device each piece costs launches; on CPU it should stay in the cache.
constexpr int64_t kLogitsWidenedOnDevice = int64_t{1} << 23;

/// Rows that start at multiples of 64 bytes: oneDNN's products take half as long again with others.
at::Tensor empty_aligned_rows(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  const int64_t line = kLineBytes / static_cast<int64_t>(options.dtype().itemsize());
  return at::empty({rows, (columns + line - 1) / line * line}, options).narrow(1, 0, columns);
}

at::ScalarType sums_of(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// Writes each row's loss to `losses`; where `scale` is defined, the logits become scale * their gradient.
/// Some rows after others, so that what is wider than the logits stays small; their number changes no bits.
void rows_loss(const at::Tensor& logits, const at::Tensor& targets, const at::Tensor& scale,
               const at::Tensor& losses) {
  const at::ScalarType dtype = sums_of(logits.scalar_type());
  const int64_t widened = logits.is_cpu() ? kLogitsWidened : kLogitsWidenedOnDevice;
  const int64_t step = std::max<int64_t>(1, widened / logits.size(1));
  for (int64_t row = 0; row < logits.size(0); row += step) {
    const int64_t count = std::min(step, logits.size(0) - row);
    const at::Tensor here = logits.narrow(0, row, count), target = targets.narrow(0, row, count);
    at::Tensor p = at::log_softmax(here, /*dim=*/1, dtype);
    losses.narrow(0, row, count).copy_(at::nll_loss(p, target, /*weight=*/{}, at::Reduction::None, kIgnored));
    if (!scale.defined()) continue;
    // A row that is left out is multiplied by 0, so that NaN shows.
    const at::Tensor counts = target.ne(kIgnored).to(dtype).unsqueeze(1);
    p.exp_().scatter_add_(1, target.clamp_min(0).unsqueeze(1), -counts);
    here.copy_(p.mul_(counts.mul_(scale)));
  }
}

struct HeadLoss : torch::autograd::Function<HeadLoss> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& targets, int64_t rows_at_a_time, bool wants_gradients) {
    const int64_t rows = hidden.size(0);
    const bool of_hidden = wants_gradients && hidden.requires_grad(),
               of_weight = wants_gradients && weight.requires_grad();
    const at::ScalarType dtype = sums_of(weight.scalar_type());
    const at::Tensor counted = targets.ne(kIgnored).sum();
    const at::Tensor scale =
        of_hidden || of_weight ? counted.clamp_min(1).to(dtype).reciprocal() : at::Tensor();
    at::Tensor hidden_gradient = of_hidden ? at::empty_like(hidden) : at::Tensor(), weight_gradient;
    const at::Tensor losses = at::empty({rows}, hidden.options().dtype(dtype));
    for (int64_t begin = 0; begin < rows; begin += rows_at_a_time) {
      const int64_t count = std::min(rows_at_a_time, rows - begin);
      const at::Tensor x = hidden.narrow(0, begin, count);
      at::Tensor logits = empty_aligned_rows(count, weight.size(0), weight.options());
      at::mm_out(logits, x, weight.t());
      rows_loss(logits, targets.narrow(0, begin, count), scale, losses.narrow(0, begin, count));
      if (of_hidden) hidden_gradient.narrow(0, begin, count).copy_(at::mm(logits, weight));
      if (!of_weight) continue;
      at::Tensor part = at::mm(logits.t(), x);
      // Several parts of bf16 are added up in fp32.
      if (rows > rows_at_a_time) part = part.to(dtype);
      weight_gradient = weight_gradient.defined() ? weight_gradient.add_(part) : part;
    }
    if (of_hidden) context->saved_data["hidden"] = hidden_gradient;
    if (of_weight) context->saved_data["weight"] = weight_gradient.to(weight.scalar_type());
    context->saved_data["unused"] = true;
    return losses.sum(at::kDouble).div_(counted).to(dtype);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    TORCH_CHECK(std::exchange(context->saved_data["unused"], false).toBool(),
                "the gradient of this loss was taken before: compute the loss again");
    return {taken(context, "hidden", gradients[0]), taken(context, "weight", gradients[0]), {}, {}, {}};
  }

 private:
  /// A gradient that nobody else holds, so that others may be added to it in place.
  static at::Tensor taken(AutogradContext* context, const char* name, const at::Tensor& upstream) {
    const auto found = context->saved_data.find(name);
    if (found == context->saved_data.end()) return {};
    at::Tensor gradient = found->second.toTensor();
    context->saved_data.erase(found);
    // Asking a device would stop the host; a product with 1 changes no bits.
    const bool is_one = upstream.is_cpu() && upstream.item<double>() == 1;
    return is_one ? gradient : gradient.mul_(upstream);
  }
};

}  // namespace

at::Tensor head_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     int64_t rows_at_a_time) {
  if (rows_at_a_time == 0) rows_at_a_time = std::max<int64_t>(1, kLogitsAtATime / weight.size(0));
  return HeadLoss::apply(hidden, weight, targets, rows_at_a_time, c10::GradMode::is_enabled());
}

}  // namespace zero::detail
