#include "models/linear_loss.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>

#include <algorithm>

#include "zero/model_shape.h"

namespace zero::detail {
namespace {

constexpr int64_t kLineBytes = 64;
// On a device each piece costs launches; on CPU it should stay in the cache.
constexpr int64_t kLogitsWidenedOnDevice = int64_t{1} << 23;

/// Rows that start at multiples of 64 bytes: oneDNN's products take half as long again with others.
at::Tensor empty_aligned(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  const int64_t line = kLineBytes / static_cast<int64_t>(options.dtype().itemsize());
  return at::empty({rows, (columns + line - 1) / line * line}, options).narrow(1, 0, columns);
}

/// Losses of some rows, [rows]; where `scale` [rows] is defined the logits become scale * their gradient.
/// Some rows after others, so that what is wider than the logits stays small; their number changes no bits.
at::Tensor losses_of(const LinearLoss& problem, const at::Tensor& logits, const at::Tensor& targets,
                     const at::Tensor& scale) {
  const at::ScalarType dtype = problem.sums();
  const double smoothing = problem.smoothing, spread = smoothing / static_cast<double>(logits.size(1));
  const at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(dtype));
  const int64_t widened = logits.is_cpu() ? kLogitsWidened : kLogitsWidenedOnDevice;
  const int64_t step = std::max<int64_t>(1, widened / logits.size(1));
  for (int64_t row = 0; row < logits.size(0); row += step) {
    const int64_t count = std::min(step, logits.size(0) - row);
    const at::Tensor here = logits.narrow(0, row, count), target = targets.narrow(0, row, count);
    const at::Tensor counts = target.ne(problem.ignore_index);
    const at::Tensor column = target.masked_fill(counts.logical_not(), 0).unsqueeze(1);
    at::Tensor p = at::log_softmax(here, /*dim=*/1, dtype);
    at::Tensor loss = p.gather(1, column).squeeze(1).mul_(smoothing - 1);
    if (smoothing > 0) loss.sub_(p.sum(1), spread);
    losses.narrow(0, row, count).copy_(loss.masked_fill_(counts.logical_not(), 0));
    if (!scale.defined()) continue;
    p.exp_();
    if (smoothing > 0) p.sub_(spread);
    // A row that is left out is multiplied by 0, so that NaN shows.
    const at::Tensor weight_of_row = scale.narrow(0, row, count).mul(counts.to(dtype)).unsqueeze(1);
    p.scatter_add_(1, column, counts.to(dtype).unsqueeze(1).mul_(smoothing - 1));
    here.copy_(p.mul_(weight_of_row));
  }
  return losses;
}

/// Adds a part to a sum: of several parts of bf16 in fp32.
void add_part(at::Tensor& sum, at::Tensor part, at::ScalarType dtype, bool is_only) {
  if (!is_only) part = part.to(dtype);
  sum = sum.defined() ? sum.add_(part) : part;
}

}  // namespace

std::optional<at::ScalarType> product_type(const at::Tensor& hidden, const at::Tensor& weight) {
  const at::DeviceType device = hidden.device().type();
  if (at::autocast::is_autocast_enabled(device)) return at::autocast::get_autocast_dtype(device);
  const bool is_narrow = hidden.scalar_type() == at::kBFloat16 || hidden.scalar_type() == at::kHalf;
  if (is_narrow && weight.scalar_type() == at::kFloat) return at::kFloat;
  return std::nullopt;
}

WithoutAutocast::WithoutAutocast(at::DeviceType device)
    : device_(device), was_on_(at::autocast::is_autocast_enabled(device)) {
  at::autocast::set_autocast_enabled(device, false);
}

WithoutAutocast::~WithoutAutocast() { at::autocast::set_autocast_enabled(device_, was_on_); }

at::Tensor work_through(const LinearLoss& problem, const at::Tensor& scale, LinearLossGradients& gradients) {
  const int64_t rows = problem.rows(), step = problem.rows_at_a_time;
  const at::Tensor& weight = problem.weight;
  const at::Tensor losses = at::empty({rows}, weight.options().dtype(problem.sums()));
  if (gradients.of_hidden) gradients.hidden = at::empty_like(problem.hidden);
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    const at::Tensor x = problem.hidden.narrow(0, begin, count);
    at::Tensor logits = empty_aligned(count, weight.size(0), weight.options());
    at::mm_out(logits, x, weight.t());
    if (problem.bias.defined()) logits.add_(problem.bias);
    const bool wants_gradients = gradients.any() && scale.defined();
    losses.narrow(0, begin, count)
        .copy_(losses_of(problem, logits, problem.targets.narrow(0, begin, count),
                         wants_gradients ? scale.narrow(0, begin, count) : at::Tensor()));
    if (!wants_gradients) continue;
    if (gradients.of_hidden) gradients.hidden.narrow(0, begin, count).copy_(at::mm(logits, weight));
    const bool is_only = rows <= step;
    if (gradients.of_weight) add_part(gradients.weight, at::mm(logits.t(), x), problem.sums(), is_only);
    if (gradients.of_bias) add_part(gradients.bias, logits.sum(0), problem.sums(), is_only);
  }
  if (gradients.weight.defined()) gradients.weight = gradients.weight.to(weight.scalar_type());
  if (gradients.bias.defined()) gradients.bias = gradients.bias.to(weight.scalar_type());
  return losses;
}

at::Tensor take_gradient(torch::autograd::AutogradContext* context, const char* name,
                         const at::Tensor& upstream) {
  const auto found = context->saved_data.find(name);
  if (found == context->saved_data.end()) return {};
  at::Tensor gradient = found->second.toTensor();
  context->saved_data.erase(found);
  // Asking a device would stop the host; a product with 1 changes no bits.
  const bool is_one = upstream.is_cpu() && upstream.item<double>() == 1;
  return is_one ? gradient : gradient.mul_(upstream);
}

}  // namespace zero::detail
