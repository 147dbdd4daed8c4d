#include "zero/linear_cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/shape_text.h"
#include "zero/error.h"
#include "zero/model_shape.h"

namespace zero {
namespace {

using Options = LinearCrossEntropyOptions;
using Reduction = Options::Reduction;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kPlace = "linear_cross_entropy";
constexpr int64_t kLineBytes = 64;

/// Rows that start at multiples of 64 bytes: oneDNN's products take half as long again with others.
at::Tensor empty_aligned(int64_t rows, int64_t columns, const at::TensorOptions& options) {
  const int64_t line = kLineBytes / static_cast<int64_t>(options.dtype().itemsize());
  return at::empty({rows, (columns + line - 1) / line * line}, options).narrow(1, 0, columns);
}

at::ScalarType type_of_sums(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

/// One call's inputs, rows flattened; `bias` may be undefined.
struct Problem {
  at::Tensor hidden, weight, bias, targets;
  int64_t ignore_index, rows_at_a_time;
  double smoothing;

  int64_t rows() const { return hidden.size(0); }
  at::ScalarType sums() const { return type_of_sums(weight.scalar_type()); }
};

/// Which gradients are wanted, and what has been added up of them.
struct Gradients {
  bool of_hidden = false, of_weight = false, of_bias = false;
  at::Tensor hidden = {}, weight = {}, bias = {};
  bool any() const { return of_hidden || of_weight || of_bias; }
};

/// Losses of some rows, [rows]; where `scale` [rows] is defined the logits become scale * their gradient.
/// Some rows after others, so that what is wider than the logits stays small.
at::Tensor losses_of(const Problem& problem, const at::Tensor& logits, const at::Tensor& targets,
                     const at::Tensor& scale) {
  const at::ScalarType dtype = problem.sums();
  const double smoothing = problem.smoothing, spread = smoothing / static_cast<double>(logits.size(1));
  const at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(dtype));
  const int64_t step = std::max<int64_t>(1, kLogitsWidened / logits.size(1));
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

/// The losses [rows], and into `gradients` what is wanted, of which row r counts scale[r].
at::Tensor work_through(const Problem& problem, const at::Tensor& scale, Gradients& gradients) {
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

void require_first_order() {
  require(!c10::GradMode::is_enabled(), ErrorKind::Unsupported, kPlace,
          "it has first derivatives only, and create_graph asks for more",
          "use linear and cross_entropy where second derivatives are needed");
}

/// The mean or the sum: gradients are there after the forward.
struct Reduced : torch::autograd::Function<Reduced> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& /*bias*/, const Problem& problem, bool is_mean,
                            Gradients wanted) {
    const at::Tensor counted = problem.targets.ne(problem.ignore_index).sum();
    at::Tensor scale;
    if (wanted.any())
      scale = is_mean ? counted.clamp_min(1).to(problem.sums()).reciprocal().expand({hidden.size(0)})
                      : at::ones({hidden.size(0)}, weight.options().dtype(problem.sums()));
    // Many fp32 losses are added up in fp64 where that is cheap.
    const at::Tensor losses = work_through(problem, scale, wanted);
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
    const auto taken = [&](const char* name) { return take(context, name, gradients[0]); };
    return {taken("hidden"), taken("weight"), taken("bias"), {}, {}, {}};
  }

 private:
  /// A gradient that nobody else holds, so that others may be added to it in place.
  static at::Tensor take(AutogradContext* context, const char* name, const at::Tensor& upstream) {
    const auto found = context->saved_data.find(name);
    if (found == context->saved_data.end()) return {};
    at::Tensor gradient = found->second.toTensor();
    context->saved_data.erase(found);
    if (upstream.is_cpu() && upstream.item<double>() == 1) return gradient;
    return gradient.mul_(upstream);
  }
};

/// A loss a row: which weighs how much is known in backward.
struct EachRow : torch::autograd::Function<EachRow> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& bias, const Problem& problem) {
    context->save_for_backward({hidden, weight, bias, problem.targets});
    context->saved_data["ignore_index"] = problem.ignore_index;
    context->saved_data["rows_at_a_time"] = problem.rows_at_a_time;
    context->saved_data["smoothing"] = problem.smoothing;
    Gradients none;
    return work_through(problem, {}, none);
  }

  static variable_list backward(AutogradContext* context, variable_list upstream) {
    require_first_order();
    const variable_list saved = context->get_saved_variables();
    const Problem problem{.hidden = saved[0],
                          .weight = saved[1],
                          .bias = saved[2].numel() > 0 ? saved[2] : at::Tensor(),
                          .targets = saved[3],
                          .ignore_index = context->saved_data["ignore_index"].toInt(),
                          .rows_at_a_time = context->saved_data["rows_at_a_time"].toInt(),
                          .smoothing = context->saved_data["smoothing"].toDouble()};
    Gradients gradients{.of_hidden = context->needs_input_grad(0),
                        .of_weight = context->needs_input_grad(1),
                        .of_bias = context->needs_input_grad(2)};
    work_through(problem, upstream[0].contiguous(), gradients);
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
  // On a GPU asking here would stop the host at every step; the gather's own assertion catches these.
  if (!targets.is_cpu()) return;
  const at::Tensor outside = targets.lt(0).logical_or(targets.ge(weight.size(0)));
  require(!outside.logical_and(targets.ne(options.ignore_index)).any().item<bool>(), ErrorKind::Usage, kPlace,
          "a target is outside the vocabulary of " + std::to_string(weight.size(0)) + " and not " +
              std::to_string(options.ignore_index));
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                                const LinearCrossEntropyOptions& options) {
  check(hidden, weight, targets, options);
  const int64_t most = std::max<int64_t>(1, kLogitsAtATime / std::max<int64_t>(1, weight.size(0)));
  const at::Tensor rows = hidden.reshape({-1, weight.size(1)});
  const Problem problem{.hidden = rows,
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
  const Gradients wanted{.of_hidden = with_graph && rows.requires_grad(),
                         .of_weight = with_graph && weight.requires_grad(),
                         .of_bias = with_graph && options.bias.defined() && options.bias.requires_grad()};
  return Reduced::apply(rows, weight, bias, problem, options.reduction == Reduction::Mean, wanted);
}

}  // namespace zero
