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

torch::Tensor Gpt2Impl::enter(const torch::Tensor& embedded, int64_t begin) {
  // Positions always follow each other: a slice of the table, broadcast over the batch, instead of a lookup.
  const auto positions = wpe_->weight.slice(/*dim=*/0, begin, begin + embedded.size(1));
  return torch::dropout(embedded + positions, shape_.dropout, is_training());
}

torch::Tensor Gpt2Impl::leave(const torch::Tensor& x) { return ln_f_->forward(x); }

const torch::Tensor& Gpt2Impl::embedding_weight() const { return wte_->weight; }
const torch::Tensor& Gpt2Impl::head_weight() const { return wte_->weight; }

}  // namespace zero
