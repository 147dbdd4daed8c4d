#include "zero/gpt2.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>

#include <string>

#include "models/gpt2_block.h"
#include "models/tied_head.h"
#include "zero/error.h"

namespace zero {
namespace {

std::string sizes_of(const torch::Tensor& t) {
  std::string text = "[";
  for (int64_t size : t.sizes()) text.append(text.size() > 1 ? ", " : "").append(std::to_string(size));
  return text + "]";
}

void require_ids(const torch::Tensor& t, const char* name) {
  require(t.defined() && t.dim() == 2, ErrorKind::Usage, std::string("gpt2 ") + name,
          "expected shape [batch, sequence], got " + (t.defined() ? sizes_of(t) : "no tensor"));
  require(t.scalar_type() == torch::kLong, ErrorKind::Usage, std::string("gpt2 ") + name,
          std::string("expected int64, got ") + c10::toString(t.scalar_type()),
          "convert with .to(torch::kLong)");
}

}  // namespace

Gpt2Impl::Gpt2Impl(const Gpt2Shape& shape) : torch::nn::Module("Gpt2"), shape_(shape) {
  shape.check();
  wte_ = register_module("wte", std::make_shared<Gpt2EmbeddingImpl>(shape.vocab_size, shape.width));
  wpe_ = register_module("wpe", std::make_shared<Gpt2EmbeddingImpl>(shape.context_length, shape.width));
  h_ = register_module("h", torch::nn::ModuleList());
  for (int64_t i = 0; i < shape.layers; i++) h_->push_back(Gpt2Block(shape));
  ln_f_ = register_module("ln_f", gpt2_layer_norm(shape));
}

torch::Tensor Gpt2Impl::forward(const torch::Tensor& tokens) {
  check_tokens(tokens);
  return torch::linear(hidden(torch::embedding(wte_->weight, tokens)), wte_->weight);
}

// What the head reads, from the embedded tokens [batch, sequence, width].
torch::Tensor Gpt2Impl::hidden(const torch::Tensor& embedded) {
  // Positions are always 0, 1, 2, ...: a slice of the table, broadcast over the batch, instead of a lookup.
  auto positions = wpe_->weight.slice(/*dim=*/0, 0, embedded.size(1));
  auto x = torch::dropout(embedded + positions, shape_.dropout, is_training());
  for (const auto& block : *h_) x = block->as<Gpt2BlockImpl>()->forward(x);
  return ln_f_->forward(x);
}

torch::Tensor Gpt2Impl::loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
  require_ids(targets, "targets");
  require(tokens.defined() && tokens.sizes() == targets.sizes(), ErrorKind::Usage, "gpt2 targets",
          "expected the shape of the tokens, got " + sizes_of(targets));
  if (detail::TiedHead::fits(wte_->weight)) {
    check_tokens(tokens);
    require_targets(targets);
    const detail::TiedHead head(wte_->weight);
    return head.loss(hidden(head.embed(tokens)).reshape({-1, shape_.width}), targets.reshape({-1}));
  }
  auto logits = forward(tokens).view({-1, shape_.vocab_size});
  const auto dtype = logits.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
  return torch::nll_loss(torch::log_softmax(logits, /*dim=*/1, dtype), targets.reshape({-1}));
}

void Gpt2Impl::require_targets(const torch::Tensor& targets) const {
  const auto outside = (targets < 0).logical_or(targets >= shape_.vocab_size);
  const auto wrong = outside.logical_and(targets != -100);
  require(!wrong.any().item<bool>(), ErrorKind::Usage, "gpt2 targets",
          "a target is outside the vocabulary of " + std::to_string(shape_.vocab_size) + " and not -100");
}

void Gpt2Impl::check_tokens(const torch::Tensor& tokens) const {
  require_ids(tokens, "tokens");
  const int64_t sequence = tokens.size(1);
  require(sequence <= shape_.context_length, ErrorKind::Config, "gpt2 tokens",
          "a sequence of " + std::to_string(sequence) + " tokens is longer than the context of " +
              std::to_string(shape_.context_length),
          "shorten the sequence or build the model with a larger context_length");
  require(tokens.numel() > 0, ErrorKind::Usage, "gpt2 tokens",
          "expected at least one token, got " + sizes_of(tokens));
  // On a GPU the lookup's own assertion catches these: asking here would stop the host at every step.
  if (!tokens.is_cpu()) return;
  const auto [lowest, highest] = torch::aminmax(tokens);
  const int64_t low = lowest.item<int64_t>(), high = highest.item<int64_t>();
  require(low >= 0 && high < shape_.vocab_size, ErrorKind::Usage, "gpt2 tokens",
          "token " + std::to_string(low < 0 ? low : high) + " is outside the vocabulary of " +
              std::to_string(shape_.vocab_size),
          "use the tokenizer the model was made for");
}

}  // namespace zero
