#include "zero/gpt2.h"

#include <ATen/ops/dropout.h>

#include "models/gpt2_block.h"
#include "models/layers.h"

namespace zero {

Gpt2Impl::Gpt2Impl(const Gpt2Shape& shape)
    : LanguageModel("gpt2", shape.vocab_size, shape.context_length), shape_(shape) {
  shape.check();
  wte_ = register_module("wte", std::make_shared<TableImpl>(shape.vocab_size, shape.width));
  wpe_ = register_module("wpe", std::make_shared<TableImpl>(shape.context_length, shape.width));
  h_ = register_module("h", torch::nn::ModuleList());
  for (int64_t i = 0; i < shape.layers; i++) h_->push_back(Gpt2Block(shape));
  ln_f_ = register_module("ln_f", layer_norm(shape.width, shape.layer_norm_epsilon));
}

torch::Tensor Gpt2Impl::hidden(const torch::Tensor& embedded, KeyValueCache* cache) {
  // Positions always follow each other: a slice of the table, broadcast over the batch, instead of a lookup.
  const int64_t seen = cache ? cache->length() : 0;
  auto positions = wpe_->weight.slice(/*dim=*/0, seen, seen + embedded.size(1));
  auto x = torch::dropout(embedded + positions, shape_.dropout, is_training());
  int64_t layer = 0;
  for (const auto& block : *h_) x = block->as<Gpt2BlockImpl>()->forward(x, cache, layer++);
  return ln_f_->forward(x);
}

const torch::Tensor& Gpt2Impl::embedding_weight() const { return wte_->weight; }
const torch::Tensor& Gpt2Impl::head_weight() const { return wte_->weight; }

}  // namespace zero
