#include "zero/language_model.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <torch/nn/modules/container/modulelist.h>

#include <algorithm>

#include "base/glob.h"
#include "base/mix_bits.h"
#include "models/head_loss.h"
#include "models/layers.h"
#include "models/parallel_linear_loss.h"
#include "zero/error.h"
#include "zero/gpt2.h"
#include "zero/gpt_neox.h"
#include "zero/llama.h"
#include "zero/tensor_parallel.h"

namespace zero {
namespace {

std::string sizes_of(const torch::Tensor& t) {
  std::string text = "[";
  for (int64_t size : t.sizes()) text.append(text.size() > 1 ? ", " : "").append(std::to_string(size));
  return text + "]";
}

void seed_part(std::optional<uint64_t> seed, int64_t part) {
  if (!seed) return;
  at::manual_seed(generator_seed(mix_bits(*seed + (static_cast<uint64_t>(part) + 1) * kGoldenGamma)));
}

// An fp32 head of a narrower model makes fp32 logits.
torch::Tensor for_head(const torch::Tensor& x, const torch::Tensor& head) {
  const bool is_autocast = at::autocast::is_autocast_enabled(x.device().type());
  return head.scalar_type() == torch::kFloat && !is_autocast ? x.to(torch::kFloat) : x;
}

}  // namespace

std::pair<torch::Tensor, torch::Tensor> KeyValueCache::append(int64_t layer, const torch::Tensor& keys,
                                                              const torch::Tensor& values) {
  const int64_t end = length_ + keys.size(2);
  require(end <= capacity_, ErrorKind::Usage, "key-value cache",
          std::to_string(end) + " positions do not fit its " + std::to_string(capacity_));
  if (std::ssize(layers_) <= layer) layers_.resize(layer + 1);
  Layer& held = layers_[layer];
  const auto room = [&](const torch::Tensor& part) {
    return torch::empty({part.size(0), part.size(1), capacity_, part.size(3)}, part.options());
  };
  if (!held.keys.defined()) held = {room(keys), room(values)};
  require(
      held.keys.size(0) == keys.size(0), ErrorKind::Usage, "key-value cache",
      "it holds a batch of " + std::to_string(held.keys.size(0)) + ", got " + std::to_string(keys.size(0)));
  held.keys.narrow(2, length_, keys.size(2)).copy_(keys);
  held.values.narrow(2, length_, keys.size(2)).copy_(values);
  return {held.keys.narrow(2, 0, end), held.values.narrow(2, 0, end)};
}

LanguageModel::LanguageModel(std::string name, int64_t vocab_size, int64_t context_length)
    : name_(std::move(name)), vocab_size_(vocab_size), context_length_(context_length) {}

torch::Tensor LanguageModel::forward(const torch::Tensor& tokens) {
  return gathered(last_part(run_blocks(first_part(tokens), 0, block_count())));
}

torch::Tensor LanguageModel::forward(const torch::Tensor& tokens, KeyValueCache& cache) {
  require(!at::GradMode::is_enabled(), ErrorKind::Usage, name_ + " tokens",
          "a key-value cache carries no gradients", "call it under torch::NoGradGuard");
  const torch::Tensor last = run_blocks(first_part(tokens, cache.length()), 0, block_count(), &cache);
  cache.advance(tokens.size(1));
  return gathered(last_part(last));
}

torch::Tensor LanguageModel::loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
  require_ids(targets, "targets");
  require(tokens.defined() && tokens.sizes() == targets.sizes(), ErrorKind::Usage, name_ + " targets",
          "expected the shape of the tokens, got " + sizes_of(targets));
  return last_part_loss(run_blocks(first_part(tokens), 0, block_count()), targets);
}

torch::Tensor LanguageModel::first_part(const torch::Tensor& tokens, int64_t begin) {
  check_tokens(tokens, begin);
  if (is_training()) seed_part(dropout_seed_, 0);
  return enter(torch::embedding(embedding_weight(), tokens), begin);
}

torch::Tensor LanguageModel::run_blocks(torch::Tensor x, int64_t first, int64_t last, KeyValueCache* cache) {
  require(0 <= first && first <= last && last <= block_count(), ErrorKind::Usage, name_ + " blocks",
          "there are no blocks " + std::to_string(first) + " to " + std::to_string(last) + " of " +
              std::to_string(block_count()));
  const BlockContext context{
      .cache = cache, .rotation = rotation(x, cache ? cache->length() : 0), .dropout_seed = dropout_seed_};
  return chain_.run(std::move(x), first, last, [this, context](const torch::Tensor& in, int64_t layer) {
    return apply_block(in, context, layer);
  });
}

// The only place that runs a block.
torch::Tensor LanguageModel::apply_block(const torch::Tensor& x, const BlockContext& context, int64_t layer) {
  if (is_training()) seed_part(context.dropout_seed, layer + 1);
  return blocks()[layer]->as<TransformerBlock>()->forward(x, context, layer);
}

torch::Tensor LanguageModel::last_part(const torch::Tensor& x) {
  return torch::linear(leave(x), head_weight());
}

torch::Tensor LanguageModel::last_part_loss(const torch::Tensor& x, const torch::Tensor& targets) {
  require_ids(targets, "targets");
  // On a GPU the assertions of lookups catch what is outside: asking here would stop the host.
  if (x.is_cpu()) require_targets(targets);
  // Ranks that hold parts of the vocabulary, or of the positions, make the logits of theirs.
  if (is_tensor_parallel(x) || is_tensor_parallel(head_weight()))
    return detail::parallel_linear_loss(for_head(leave(x), head_weight()), head_weight(), targets);
  return detail::head_loss(leave(x).flatten(0, 1), head_weight(), targets.reshape({-1}));
}

int64_t LanguageModel::block_count() { return static_cast<int64_t>(blocks().size()); }

void LanguageModel::require_ids(const torch::Tensor& t, const char* what) const {
  const std::string place = name_ + " " + what;
  require(t.defined() && t.dim() == 2, ErrorKind::Usage, place,
          "expected shape [batch, sequence], got " + (t.defined() ? sizes_of(t) : "no tensor"));
  require(t.scalar_type() == torch::kLong, ErrorKind::Usage, place,
          std::string("expected int64, got ") + c10::toString(t.scalar_type()),
          "convert with .to(torch::kLong)");
}

void LanguageModel::require_targets(const torch::Tensor& targets) const {
  const auto outside = (targets < 0).logical_or(targets >= vocab_size_);
  const auto wrong = outside.logical_and(targets != -100);
  require(!wrong.any().item<bool>(), ErrorKind::Usage, name_ + " targets",
          "a target is outside the vocabulary of " + std::to_string(vocab_size_) + " and not -100");
}

void LanguageModel::check_tokens(const torch::Tensor& tokens, int64_t seen) const {
  require_ids(tokens, "tokens");
  const std::string place = name_ + " tokens";
  const int64_t sequence = seen + tokens.size(1);
  require(sequence <= context_length_, ErrorKind::Config, place,
          "a sequence of " + std::to_string(sequence) + " tokens is longer than the context of " +
              std::to_string(context_length_),
          "shorten the sequence or build the model with a larger context_length");
  require(tokens.numel() > 0, ErrorKind::Usage, place,
          "expected at least one token, got " + sizes_of(tokens));
  // As for targets.
  if (!tokens.is_cpu()) return;
  const auto [lowest, highest] = torch::aminmax(tokens);
  const int64_t low = lowest.item<int64_t>(), high = highest.item<int64_t>();
  require(low >= 0 && high < vocab_size_, ErrorKind::Usage, place,
          "token " + std::to_string(low < 0 ? low : high) + " is outside the vocabulary of " +
              std::to_string(vocab_size_),
          "use the tokenizer the model was made for");
}

std::shared_ptr<LanguageModel> make_language_model(const ModelShape& shape) {
  if (const auto* gpt2 = std::get_if<Gpt2Shape>(&shape)) return std::make_shared<Gpt2Impl>(*gpt2);
  if (const auto* llama = std::get_if<LlamaShape>(&shape)) return std::make_shared<LlamaImpl>(*llama);
  return std::make_shared<GptNeoxImpl>(std::get<GptNeoxShape>(shape));
}

std::vector<std::string> linear_layer_names(const torch::nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    if (dynamic_cast<const LinearLayerImpl*>(item.value().get())) names.push_back(item.key());
  return names;
}

int add_adapters(torch::nn::Module& model, const LoraConfig& lora) {
  if (lora.rank == 0) return 0;
  int added = 0;
  for (const auto& item : model.named_modules("", /*include_self=*/false)) {
    auto* layer = dynamic_cast<LinearLayerImpl*>(item.value().get());
    const auto matches = [&](const std::string& pattern) { return glob_matches(pattern, item.key()); };
    if (!layer || std::none_of(lora.targets.begin(), lora.targets.end(), matches)) continue;
    layer->adapt(lora.rank, lora.alpha / static_cast<double>(lora.rank));
    ++added;
  }
  return added;
}

}  // namespace zero
