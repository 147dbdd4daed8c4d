#include "models/gelu.h"

#include <ATen/ops/gelu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "operators/gelu.h"

namespace zero::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct TanhGelu : torch::autograd::Function<TanhGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return fast_gelu(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {fast_gelu_backward(gradients[0], context->get_saved_variables()[0])};
  }
};

}  // namespace

at::Tensor tanh_gelu(const at::Tensor& x) {
  if (!has_fast_gelu(x)) return at::gelu(x, "tanh");
  return c10::GradMode::is_enabled() && x.requires_grad() ? TanhGelu::apply(x) : fast_gelu(x);
}

}  // namespace zero::detail
