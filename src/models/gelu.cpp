#include "models/gelu.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "compute/parallel.h"
#include "models/gelu_loops.h"

namespace zero::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 1 << 14;

/// Calls work(element type, begin, end) on pieces.
template <class Work>
void on_pieces(const at::Tensor& x, const Work& work) {
  const bool half = x.scalar_type() == at::kBFloat16;
  parallel_over(x.view({-1}), kGrain, [&](int64_t begin, int64_t end) {
    half ? work(Bf16{}, begin, end) : work(float{}, begin, end);
  });
}

template <class T>
T* values(const at::Tensor& tensor, int64_t begin) {
  return static_cast<T*>(tensor.data_ptr()) + begin;
}

at::Tensor forward_of(const at::Tensor& x) {
  at::Tensor y = at::empty_like(x);
  on_pieces(x, [&](auto element, int64_t begin, int64_t end) {
    using T = decltype(element);
    tanh_gelu(values<T>(x, begin), values<T>(y, begin), end - begin);
  });
  return y;
}

struct TanhGelu : torch::autograd::Function<TanhGelu> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return forward_of(x);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0], gradient = gradients[0].contiguous();
    at::Tensor out = at::empty_like(x);
    on_pieces(x, [&](auto element, int64_t begin, int64_t end) {
      using T = decltype(element);
      tanh_gelu_backward(values<T>(x, begin), values<T>(gradient, begin), values<T>(out, begin), end - begin);
    });
    return {out};
  }
};

}  // namespace

at::Tensor tanh_gelu(const at::Tensor& x) {
  const bool fits = x.is_cpu() && x.is_contiguous() && x.numel() > 0 &&
                    (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
  if (!fits) return at::gelu(x, "tanh");
  return c10::GradMode::is_enabled() && x.requires_grad() ? TanhGelu::apply(x) : forward_of(x);
}

}  // namespace zero::detail
