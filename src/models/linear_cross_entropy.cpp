#include "zero/linear_cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/shape_text.h"
#include "models/linear_loss.h"
#include "models/parallel_linear_loss.h"
#include "zero/error.h"
#include "zero/model_shape.h"
#include "zero/tensor_parallel.h"

namespace zero {
namespace {

using Options = LinearCrossEntropyOptions;
using Reduction = Options::Reduction;
using detail::LinearLoss;
using detail::LinearLossGradients;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kPlace = "linear_cross_entropy";
void require_first_order() {
  require(!c10::GradMode::is_enabled(), ErrorKind::Unsupported, kPlace,
          "it has first derivatives only, and create_graph asks for more",
          "use linear and cross_entropy where second derivatives are needed");
}

/// The mean or the sum: gradients are there after the forward.
struct Reduced : torch::autograd::Function<Reduced> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& /*bias*/, const LinearLoss& problem, bool is_mean,
                            LinearLossGradients wanted) {
    const at::Tensor counted = problem.targets.ne(problem.ignore_index).sum();
    at::Tensor scale;
    if (wanted.any())
      scale = is_mean ? counted.clamp_min(1).to(problem.sums()).reciprocal().expand({hidden.size(0)})
                      : at::ones({hidden.size(0)}, weight.options().dtype(problem.sums()));
    // Many fp32 losses are added up in fp64 where that is cheap.
    const at::Tensor losses = detail::work_through(problem, scale, wanted);
    const at::Tensor total = losses.is_cpu() ? losses.sum(at::kDouble) : losses.sum();
    const auto keep = [&](const char* name, const at::Tensor& gradient) {
      if (gradient.defined()) context->saved_data[name] = gradient;
    };
    keep("hidden", wanted.hidden);
    keep("weight", wanted.weight);
    keep("bias", wanted.bias);
    context->saved_data["unused"] = true;
    return (is_mean ? total / counted : total).to(problem.sums());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    require_first_order();
    require(std::exchange(context->saved_data["unused"], false).toBool(), ErrorKind::Usage, kPlace,
            "the gradient of this loss was taken before", "compute the loss again");
    const auto taken = [&](const char* name) { return detail::take_gradient(context, name, gradients[0]); };
    return {taken("hidden"), taken("weight"), taken("bias"), {}, {}, {}};
  }
};

/// A loss a row: which weighs how much is known in backward.
struct EachRow : torch::autograd::Function<EachRow> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& bias, const LinearLoss& problem) {
    context->save_for_backward({hidden, weight, bias, problem.targets});
    context->saved_data["ignore_index"] = problem.ignore_index;
    context->saved_data["rows_at_a_time"] = problem.rows_at_a_time;
    context->saved_data["smoothing"] = problem.smoothing;
    LinearLossGradients none;
    return detail::work_through(problem, {}, none);
  }

  static variable_list backward(AutogradContext* context, variable_list upstream) {
    require_first_order();
    const variable_list saved = context->get_saved_variables();
    const LinearLoss problem{.hidden = saved[0],
                             .weight = saved[1],
                             .bias = saved[2].numel() > 0 ? saved[2] : at::Tensor(),
                             .targets = saved[3],
                             .ignore_index = context->saved_data["ignore_index"].toInt(),
                             .rows_at_a_time = context->saved_data["rows_at_a_time"].toInt(),
                             .smoothing = context->saved_data["smoothing"].toDouble()};
    LinearLossGradients gradients{.of_hidden = context->needs_input_grad(0),
                                  .of_weight = context->needs_input_grad(1),
                                  .of_bias = context->needs_input_grad(2)};
    detail::work_through(problem, upstream[0].contiguous(), gradients);
    return {gradients.hidden, gradients.weight, gradients.bias, {}};
  }
};

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  return std::string(c10::toString(tensor.scalar_type())) + " " +
         shape_text({tensor.sizes().data(), tensor.sizes().size()});
}

void check(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
           const Options& options) {
  const auto expect = [](bool ok, const char* expected, const at::Tensor& got) {
    require(ok, ErrorKind::Usage, kPlace, std::string("expected ") + expected + ", got " + text_of(got));
  };
  expect(weight.defined() && weight.dim() == 2 && weight.is_floating_point(),
         "a floating weight [vocabulary, width]", weight);
  expect(hidden.defined() && hidden.dim() >= 1 && hidden.size(-1) == weight.size(1) &&
             hidden.scalar_type() == weight.scalar_type(),
         "hidden [..., width] of the weight's width and dtype", hidden);
  expect(targets.defined() && targets.scalar_type() == at::kLong &&
             targets.sizes() == hidden.sizes().slice(0, hidden.dim() - 1),
         "int64 targets of hidden's shape without its width", targets);
  const at::Tensor& bias = options.bias;
  expect(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0) &&
                             bias.scalar_type() == weight.scalar_type()),
         "a bias [vocabulary] of the weight's dtype", bias);
  require(options.label_smoothing >= 0 && options.label_smoothing <= 1, ErrorKind::Config, kPlace,
          "expected label_smoothing in 0..1, got " + std::to_string(options.label_smoothing));
  require(options.rows_at_a_time >= 0, ErrorKind::Config, kPlace,
          "expected rows_at_a_time >= 0, got " + std::to_string(options.rows_at_a_time));
  // On a GPU asking here would stop the host at every step; the gather's own assertion catches these. Where
  // ranks hold parts of the vocabulary, the loss over them asks.
  if (!targets.is_cpu() || is_tensor_parallel(weight)) return;
  const at::Tensor outside = targets.lt(0).logical_or(targets.ge(weight.size(0)));
  require(!outside.logical_and(targets.ne(options.ignore_index)).any().item<bool>(), ErrorKind::Usage, kPlace,
          "a target is outside the vocabulary of " + std::to_string(weight.size(0)) + " and not " +
              std::to_string(options.ignore_index));
}

at::Tensor of_parallel(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                       const Options& options) {
  const at::Reduction::Reduction reduction = options.reduction == Reduction::Mean  ? at::Reduction::Mean
                                             : options.reduction == Reduction::Sum ? at::Reduction::Sum
                                                                                   : at::Reduction::None;
  const at::Tensor loss = detail::parallel_linear_loss(hidden, weight, targets,
                                                       {.bias = options.bias,
                                                        .reduction = reduction,
                                                        .ignore_index = options.ignore_index,
                                                        .label_smoothing = options.label_smoothing,
                                                        .rows_at_a_time = options.rows_at_a_time});
  const at::Tensor wide = loss.to(weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  return reduction == at::Reduction::None ? wide.view(targets.sizes()) : wide;
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options) {
  const auto dtype =
      hidden.defined() && weight.defined() ? detail::product_type(hidden, weight) : std::nullopt;
  if (dtype) {
    LinearCrossEntropyOptions same = options;
    if (same.bias.defined()) same.bias = same.bias.to(*dtype);
    const at::Tensor x = hidden.to(*dtype), w = weight.to(*dtype);
    const detail::WithoutAutocast without(hidden.device().type());
    return linear_cross_entropy(x, w, targets, same);
  }
  check(hidden, weight, targets, options);
  if (is_tensor_parallel(hidden) || is_tensor_parallel(weight))
    return of_parallel(hidden, weight, targets, options);
  const int64_t most = std::max<int64_t>(1, kLogitsAtATime / std::max<int64_t>(1, weight.size(0)));
  const at::Tensor rows = hidden.reshape({-1, weight.size(1)});
  const LinearLoss problem{.hidden = rows,
                           .weight = weight,
                           .bias = options.bias,
                           .targets = targets.reshape({-1}),
                           .ignore_index = options.ignore_index,
                           .rows_at_a_time = options.rows_at_a_time > 0 ? options.rows_at_a_time : most,
                           .smoothing = options.label_smoothing};
  // Functions take no undefined tensors.
  const at::Tensor bias = options.bias.defined() ? options.bias : at::empty({0}, rows.options());
  if (options.reduction == Reduction::None)
    return EachRow::apply(rows, weight, bias, problem).view(targets.sizes());
  const bool with_graph = c10::GradMode::is_enabled();
  const LinearLossGradients wanted{
      .of_hidden = with_graph && rows.requires_grad(),
      .of_weight = with_graph && weight.requires_grad(),
      .of_bias = with_graph && options.bias.defined() && options.bias.requires_grad()};
  return Reduced::apply(rows, weight, bias, problem, options.reduction == Reduction::Mean, wanted);
}

}  // namespace zero
