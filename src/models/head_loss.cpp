#include "models/head_loss.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "models/linear_loss.h"
#include "zero/model_shape.h"

namespace zero::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct HeadLoss : torch::autograd::Function<HeadLoss> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& targets, int64_t rows_at_a_time, bool wants_gradients) {
    LinearLoss problem{.hidden = hidden, .weight = weight, .bias = {}, .targets = targets};
    problem.rows_at_a_time = rows_at_a_time;
    LinearLossGradients gradients{.of_hidden = wants_gradients && hidden.requires_grad(),
                                  .of_weight = wants_gradients && weight.requires_grad()};
    const at::Tensor counted = targets.ne(problem.ignore_index).sum();
    at::Tensor scale;
    if (gradients.any())
      scale = counted.clamp_min(1).to(problem.sums()).reciprocal().expand({hidden.size(0)});
    const at::Tensor losses = work_through(problem, scale, gradients);
    if (gradients.of_hidden) context->saved_data["hidden"] = gradients.hidden;
    if (gradients.of_weight) context->saved_data["weight"] = gradients.weight;
    context->saved_data["unused"] = true;
    return losses.sum(at::kDouble).div_(counted).to(problem.sums());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    TORCH_CHECK(std::exchange(context->saved_data["unused"], false).toBool(),
                "the gradient of this loss was taken before: compute the loss again");
    return {take_gradient(context, "hidden", gradients[0]),
            take_gradient(context, "weight", gradients[0]),
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor head_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                     int64_t rows_at_a_time) {
  if (rows_at_a_time == 0) rows_at_a_time = std::max<int64_t>(1, kLogitsAtATime / weight.size(0));
  const auto dtype = product_type(hidden, weight);
  const at::Tensor x = dtype ? hidden.to(*dtype) : hidden, w = dtype ? weight.to(*dtype) : weight;
  const WithoutAutocast without(hidden.device().type());
  return HeadLoss::apply(x, w, targets, rows_at_a_time, c10::GradMode::is_enabled());
}

}  // namespace zero::detail
