#include "tensor/vocabulary_loss.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <utility>
#include <vector>

#include "zero/error.h"

namespace zero::detail {
namespace {

// What the gradient needs of the forward, of this rank's columns.
struct Softmax {
  at::Tensor probabilities;         // [rows, columns]
  at::Tensor column, mine, counts;  // [rows]: the target's column here, whether it is here, and not ignored
  at::Tensor divisor;               // of the mean; undefined otherwise
};

at::Tensor gradient_of_rows(const Softmax& s, double smoothing, int64_t vocabulary, at::Tensor gradient) {
  const at::ScalarType type = s.probabilities.scalar_type();
  gradient = gradient.to(type);
  if (s.divisor.defined()) gradient = gradient / s.divisor;
  const at::Tensor rows = at::where(s.counts, gradient.expand({s.counts.size(0)}), 0.0);
  at::Tensor result = s.probabilities - smoothing / static_cast<double>(vocabulary);
  result.scatter_add_(1, s.column.unsqueeze(1), (s.mine.to(type) * (smoothing - 1)).unsqueeze(1));
  return result.mul_(rows.unsqueeze(1));
}

// What is as large as the logits is saved as operators' nodes save theirs, so that it may be made again, or
// wait elsewhere, as theirs.
struct LossGradient : torch::autograd::Node {
  torch::autograd::SavedVariable probabilities;
  Softmax softmax;  // without them
  bool is_there = true;
  double smoothing = 0;
  int64_t vocabulary = 0;
  at::ScalarType type = at::kFloat;
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    require(!at::GradMode::is_enabled(), ErrorKind::Unsupported, "cross_entropy",
            "its gradient over a vocabulary that is cut cannot be differentiated again");
    require(is_there, ErrorKind::Usage, "cross_entropy", "its gradient was taken before",
            "keep the graph, or compute the loss again");
    Softmax whole = softmax;
    whole.probabilities = probabilities.unpack();
    return {gradient_of_rows(whole, smoothing, vocabulary, gradients[0]).to(type)};
  }
  void release_variables() override {
    probabilities.reset_data();
    softmax = {};
    is_there = false;
  }
};

at::Tensor reduced(const at::Tensor& losses, const at::Tensor& counted, int64_t reduction) {
  if (reduction == at::Reduction::None) return losses;
  return reduction == at::Reduction::Mean ? losses.sum() / counted : losses.sum();
}

}  // namespace

void check_targets(const at::Tensor& targets, int64_t vocabulary, int64_t ignored) {
  if (!targets.is_cpu()) return;  // asking would stop the host
  const at::Tensor wrong = (targets < 0).logical_or(targets >= vocabulary).logical_and(targets != ignored);
  require(!wrong.any().item<bool>(), ErrorKind::Usage, "cross_entropy",
          "a target is outside the vocabulary of " + std::to_string(vocabulary) + " and not " +
              std::to_string(ignored));
}

at::Tensor vocabulary_loss(const at::Tensor& local, const Cut& cut, const at::Tensor& targets,
                           const VocabularyLossOptions& options, TensorAxis& axis) {
  const int64_t vocabulary = cut.global_size(), begin = part_begin(cut.blocks.front(), axis.place());
  check_targets(targets, vocabulary, options.ignore_index);
  const at::ScalarType type = local.scalar_type(), wide = type == at::kDouble ? at::kDouble : at::kFloat;
  Softmax s;
  at::Tensor loss;
  {
    at::NoGradGuard no_grad;
    const at::Tensor x = local.detach().to(wide);
    const at::Tensor most = axis.maximum(x.amax(1), cut.origin);
    const at::Tensor shifted = x - most.unsqueeze(1);
    s.counts = targets != options.ignore_index;
    s.mine = (targets >= begin).logical_and(targets < begin + x.size(1)).logical_and(s.counts);
    s.column = (targets - begin).masked_fill(s.mine.logical_not(), 0);
    const at::Tensor own =
        shifted.gather(1, s.column.unsqueeze(1)).squeeze(1).masked_fill(s.mine.logical_not(), 0);
    std::vector<at::Tensor> sums{at::Tensor(), own};
    if (options.label_smoothing > 0) sums.push_back(shifted.sum(1));
    s.probabilities = shifted.exp();
    sums[0] = s.probabilities.sum(1);
    const at::Tensor totals = axis.sum(at::stack(sums), cut.origin);
    s.probabilities.div_(totals[0].unsqueeze(1));
    const at::Tensor log_sum = totals[0].log();
    at::Tensor losses = log_sum - totals[1] * (1 - options.label_smoothing);
    if (options.label_smoothing > 0)
      losses = losses - totals[2] * (options.label_smoothing / static_cast<double>(vocabulary));
    losses = at::where(s.counts, losses, 0.0);
    const at::Tensor counted = s.counts.sum().to(wide);
    if (options.reduction == at::Reduction::Mean) s.divisor = counted;
    loss = reduced(losses, counted, options.reduction).to(type);
  }
  if (!at::GradMode::is_enabled() || !local.requires_grad()) return loss;
  auto node = std::shared_ptr<LossGradient>(new LossGradient, torch::autograd::deleteNode);
  node->probabilities =
      torch::autograd::SavedVariable(std::exchange(s.probabilities, {}), /*is_output=*/false);
  node->softmax = s;
  node->smoothing = options.label_smoothing;
  node->vocabulary = vocabulary;
  node->type = type;
  node->set_next_edges(torch::autograd::collect_next_edges(local));
  torch::autograd::set_history(loss, node);
  return loss;
}

}  // namespace zero::detail
