#include "models/tied_head.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "compute/parallel.h"
#include "operators/cross_entropy.h"
#include "operators/product.h"
#include "zero/model_shape.h"

namespace zero::detail {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kIgnored = -100;

c10::intrusive_ptr<TiedGradient> tied_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<TiedGradient>(context->saved_data["tied"].toCapsule());
}

struct Embed : torch::autograd::Function<Embed> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& weight, const at::Tensor& tokens,
                            const c10::intrusive_ptr<TiedGradient>& tied) {
    context->saved_data["tied"] = c10::IValue::make_capsule(tied);
    context->saved_data["tokens"] = tokens;
    context->saved_data["rows"] = weight.size(0);
    return at::embedding(weight, tokens);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor rows = gradients[0].reshape({-1, gradients[0].size(-1)});
    at::Tensor gradient = std::exchange(tied_of(context)->of_head, {});
    if (!gradient.defined())
      gradient = at::zeros({context->saved_data["rows"].toInt(), rows.size(1)}, rows.options());
    gradient.index_add_(0, context->saved_data["tokens"].toTensor().reshape({-1}), rows);
    return {gradient, {}, {}};
  }
};

/// A rectangle of logits [rows, vocabulary]: adds up the loss of its rows and turns it into its own gradient.
template <class Element>
double rows_loss(const at::Tensor& logits, const at::Tensor& targets, float scale, bool wants_gradient) {
  auto* data = static_cast<Element*>(logits.data_ptr());
  const int64_t* target = targets.const_data_ptr<int64_t>();
  const int64_t vocabulary = logits.size(1), stride = logits.stride(0);
  const at::Tensor losses = at::zeros({logits.size(0)}, at::kDouble);
  double* loss = losses.data_ptr<double>();
  parallel_over(losses, /*grain=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Element* x = data + row * stride;
      const bool counts = target[row] != kIgnored;
      const float sum = log_sum_exp(x, vocabulary);
      if (counts) loss[row] = static_cast<double>(sum) - static_cast<double>(to_float(x[target[row]]));
      if (!wants_gradient) continue;
      if (!counts) {
        std::fill_n(x, vocabulary, Element{});
        continue;
      }
      const float probability = std::exp(to_float(x[target[row]]) - sum);
      scaled_softmax(x, vocabulary, sum, scale);
      store(x[target[row]], scale * (probability - 1));
    }
  });
  double total = 0;
  for (int64_t row = 0; row < logits.size(0); ++row) total += loss[row];
  return total;
}

struct HeadLoss : torch::autograd::Function<HeadLoss> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& targets, const c10::intrusive_ptr<TiedGradient>& tied,
                            int64_t chunk, bool wants_gradient) {
    const int64_t rows = hidden.size(0);
    if (chunk == 0) chunk = std::max<int64_t>(1, kLogitsAtATime / weight.size(0));
    const int64_t counted = rows - (targets == kIgnored).sum().item<int64_t>();
    const float scale = counted > 0 ? 1.0F / static_cast<float>(counted) : 0.0F;
    at::Tensor of_hidden, of_weight;
    if (wants_gradient) of_hidden = at::empty_like(hidden);
    double loss = 0;
    for (int64_t begin = 0; begin < rows; begin += chunk) {
      const int64_t count = std::min(chunk, rows - begin);
      const at::Tensor x = hidden.narrow(0, begin, count),
                       target = targets.narrow(0, begin, count).contiguous();
      // Products from and to GPT-2's odd rows take longer.
      at::Tensor logits = empty_aligned_rows(count, weight.size(0), weight.options());
      at::mm_out(logits, x, weight.t());
      loss += weight.scalar_type() == at::kBFloat16 ? rows_loss<Bf16>(logits, target, scale, wants_gradient)
                                                    : rows_loss<float>(logits, target, scale, wants_gradient);
      if (!wants_gradient) continue;
      of_hidden.narrow(0, begin, count).copy_(at::mm(logits, weight));
      if (!weight.requires_grad()) continue;
      at::Tensor part = at::mm(logits.t(), x);
      // Several parts of bf16 are added up in fp32.
      if (rows > chunk) part = part.to(at::kFloat);
      of_weight = of_weight.defined() ? of_weight.add_(part) : part;
    }
    if (wants_gradient) {
      context->saved_data["hidden"] = of_hidden;
      if (of_weight.defined()) context->saved_data["weight"] = of_weight.to(weight.scalar_type());
      context->saved_data["unused"] = true;
      context->saved_data["tied"] = c10::IValue::make_capsule(tied);
    }
    const double mean = counted > 0 ? loss / static_cast<double>(counted) : std::nan("");
    return at::full({}, mean, hidden.options().dtype(at::kFloat));
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const double factor = gradients[0].item<double>();
    TORCH_CHECK(std::exchange(context->saved_data["unused"], false).toBool(),
                "the gradient of this loss was taken before: compute the loss again");
    at::Tensor of_hidden = context->saved_data["hidden"].toTensor();
    if (factor != 1) of_hidden = of_hidden * factor;
    auto of_weight = context->saved_data.find("weight");
    if (of_weight != context->saved_data.end()) {
      // The embedding's backward adds its rows in place: nobody else may see it.
      at::Tensor gradient = of_weight->second.toTensor();
      context->saved_data.erase(of_weight);
      if (factor != 1) gradient.mul_(factor);
      tied_of(context)->of_head = gradient;
    }
    return {of_hidden, {}, {}, {}, {}, {}};
  }
};

}  // namespace

TiedHead::TiedHead(const at::Tensor& weight)
    : weight_(weight), gradient_(c10::make_intrusive<TiedGradient>()) {}

at::Tensor TiedHead::embed(const at::Tensor& tokens) const {
  return Embed::apply(weight_, tokens, gradient_);
}

at::Tensor TiedHead::loss(const at::Tensor& hidden, const at::Tensor& targets, int64_t rows_at_a_time) const {
  const bool wants_gradient = c10::GradMode::is_enabled() && hidden.requires_grad();
  return HeadLoss::apply(hidden, weight_, targets, gradient_, rows_at_a_time, wants_gradient);
}

bool TiedHead::fits(const at::Tensor& weight) {
  return weight.is_cpu() && (weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kBFloat16);
}

}  // namespace zero::detail
