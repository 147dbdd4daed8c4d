#include "zero/parallel_layers.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/nn/init.h>

#include <cmath>
#include <utility>

#include "tensor/parallel_tensor.h"
#include "tensor/vocabulary_loss.h"
#include "zero/error.h"

namespace zero {
namespace {

using torch::Tensor;

void require_sizes(const char* what, int64_t in, int64_t out) {
  require(in > 0 && out > 0, ErrorKind::Config, what,
          "expected sizes of at least 1, got " + std::to_string(in) + " and " + std::to_string(out));
}

// As torch::nn::Linear draws them, in its order.
void draw_linear(Tensor& weight, Tensor& bias) {
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
  const double bound = 1 / std::sqrt(static_cast<double>(weight.size(1)));
  if (bias.defined()) torch::nn::init::uniform_(bias, -bound, bound);
}

// "WORD[HEADS]", or the word alone.
std::string by_heads(const std::string& word, int64_t heads) {
  return heads == 0 ? word : word + "[" + std::to_string(heads) + "]";
}

std::string word_of(const std::vector<OutputBlock>& blocks) {
  if (blocks.empty()) return "colwise";
  if (blocks.size() == 1) return by_heads("colwise", blocks.front().heads);
  std::string word = "fused[";
  for (const OutputBlock& block : blocks) {
    if (word.back() != '[') word += ",";
    word += std::to_string(block.size);
    if (block.heads > 0) word += ":" + std::to_string(block.heads);
  }
  return word + "]";
}

std::string sizes_of(const Tensor& x) {
  std::string text = "[";
  for (const int64_t size : x.sizes()) text += (text == "[" ? "" : ", ") + std::to_string(size);
  return text + "]";
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(ColumnParallelLinearOptions given)
    : options(std::move(given)) {
  constexpr const char* kPlace = "ColumnParallelLinear";
  require_sizes(kPlace, options.in, options.out);
  int64_t sum = 0;
  for (const OutputBlock& block : options.blocks) {
    require(block.size > 0 && block.heads >= 0 && (block.heads == 0 || block.size % block.heads == 0),
            ErrorKind::Config, kPlace,
            std::to_string(block.heads) + " heads do not fit a block of " + std::to_string(block.size));
    sum += block.size;
  }
  require(options.blocks.empty() || sum == options.out, ErrorKind::Config, kPlace,
          "blocks of " + std::to_string(sum) + " outputs do not fit " + std::to_string(options.out));
  reset();
}

void ColumnParallelLinearImpl::reset() {
  weight = register_parameter("weight", torch::empty({options.out, options.in}));
  bias = register_parameter("bias", options.bias ? torch::empty({options.out}) : Tensor(), options.bias);
  draw_linear(weight, bias);
}

Tensor ColumnParallelLinearImpl::forward(const Tensor& x) {
  const Tensor y = torch::linear(x, weight, bias);
  return options.gather_output ? gathered(y) : y;
}

TensorParallelPlan ColumnParallelLinearImpl::tensor_parallel_rules(int /*ranks*/) const {
  const std::string word = word_of(options.blocks);
  TensorParallelPlan rules{{"weight", word}};
  if (options.bias) rules.push_back({"bias", word});
  return rules;
}

RowParallelLinearImpl::RowParallelLinearImpl(RowParallelLinearOptions given) : options(given) {
  constexpr const char* kPlace = "RowParallelLinear";
  require_sizes(kPlace, options.in, options.out);
  require(options.heads >= 0 && (options.heads == 0 || options.in % options.heads == 0), ErrorKind::Config,
          kPlace,
          std::to_string(options.heads) + " heads do not fit " + std::to_string(options.in) + " inputs");
  reset();
}

void RowParallelLinearImpl::reset() {
  weight = register_parameter("weight", torch::empty({options.out, options.in}));
  bias = register_parameter("bias", options.bias ? torch::empty({options.out}) : Tensor(), options.bias);
  draw_linear(weight, bias);
}

Tensor RowParallelLinearImpl::forward(const Tensor& x) {
  if (options.input_is_parallel && detail::is_parallel(weight)) {
    const detail::Cut cut = detail::value_of(x).cut;
    require(cut && cut.dim == x.dim() - 1, ErrorKind::Usage, "RowParallelLinear",
            "input_is_parallel: expected parts of " + std::to_string(options.in) +
                " features, as a column-parallel layer leaves them, got a tensor " + sizes_of(x) +
                (cut ? " cut in another dim" : " that is whole"),
            "set input_is_parallel to false, of which each rank then reads its part");
  }
  return torch::linear(x, weight, bias);
}

TensorParallelPlan RowParallelLinearImpl::tensor_parallel_rules(int /*ranks*/) const {
  return {{"weight", by_heads("rowwise", options.heads)}};
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(VocabParallelEmbeddingOptions given) : options(given) {
  constexpr const char* kPlace = "VocabParallelEmbedding";
  require_sizes(kPlace, options.words, options.width);
  require(!options.padding || (*options.padding >= 0 && *options.padding < options.words), ErrorKind::Config,
          kPlace,
          "padding: expected a row below " + std::to_string(options.words) + ", got " +
              std::to_string(options.padding.value_or(0)));
  reset();
}

void VocabParallelEmbeddingImpl::reset() {
  weight = register_parameter("weight", torch::empty({options.words, options.width}));
  torch::nn::init::normal_(weight);
  const torch::NoGradGuard no_grad;
  if (options.padding) weight.select(0, *options.padding).fill_(0);
}

Tensor VocabParallelEmbeddingImpl::forward(const Tensor& ids) {
  return torch::embedding(weight, ids, options.padding.value_or(-1));
}

TensorParallelPlan VocabParallelEmbeddingImpl::tensor_parallel_rules(int /*ranks*/) const {
  return {{"weight", "vocab"}};
}

Tensor vocab_parallel_cross_entropy(const Tensor& logits, const Tensor& targets,
                                    const VocabParallelCrossEntropyOptions& options) {
  constexpr const char* kPlace = "vocab_parallel_cross_entropy";
  require(logits.defined() && targets.defined() && logits.dim() >= 2 && logits.is_floating_point() &&
              logits.sizes().slice(0, logits.dim() - 1) == targets.sizes(),
          ErrorKind::Usage, kPlace,
          "expected logits [.., vocabulary] of a floating dtype and targets of the sizes before, got " +
              (logits.defined() ? sizes_of(logits) : "no tensor") + " and " +
              (targets.defined() ? sizes_of(targets) : "no tensor"));
  require(targets.scalar_type() == torch::kLong, ErrorKind::Usage, kPlace,
          std::string("expected targets of int64, got ") + c10::toString(targets.scalar_type()),
          "convert with .to(torch::kLong)");
  require(options.label_smoothing >= 0 && options.label_smoothing <= 1, ErrorKind::Config, kPlace,
          "label_smoothing: expected 0..1, got " + std::to_string(options.label_smoothing));
  const Tensor rows = targets.reshape({-1});
  detail::check_targets(rows, logits.size(-1), options.ignore_index);
  using Reduction = VocabParallelCrossEntropyOptions::Reduction;
  const int64_t reduction = options.reduction == Reduction::Mean  ? at::Reduction::Mean
                            : options.reduction == Reduction::Sum ? at::Reduction::Sum
                                                                  : at::Reduction::None;
  const Tensor loss = at::cross_entropy_loss(logits.flatten(0, -2), rows, /*weight=*/{}, reduction,
                                             options.ignore_index, options.label_smoothing);
  return options.reduction == Reduction::None ? loss.view(targets.sizes()) : loss;
}

}  // namespace zero
