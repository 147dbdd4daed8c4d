#pragma once
// GPT-2, a LanguageModel.
// Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): pre-norm blocks, tanh GELU,
// learned positions, and a head that is the token embedding itself. Parameter names, shapes and the [in, out]
// order of linear weights are those of Hugging Face's GPT2Model, so their checkpoints map one to one.

#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <memory>

#include "zero/gpt2_shape.h"
#include "zero/language_model.h"

namespace zero {

class TableImpl;

class Gpt2Impl : public LanguageModel {
 public:
  /// Initialises as GPT-2 does, from the default generator: weights normal(0, 0.02), those that write to the
  /// residual stream smaller by sqrt(2 * layers), biases 0, norm gains 1. Throws Config for an impossible
  /// shape.
  explicit Gpt2Impl(const Gpt2Shape& shape);

  const Gpt2Shape& shape() const { return shape_; }

 private:
  const torch::Tensor& embedding_weight() const override;
  const torch::Tensor& head_weight() const override;
  torch::Tensor enter(const torch::Tensor& embedded, int64_t begin) override;
  torch::nn::ModuleListImpl& blocks() override { return *h_; }
  torch::Tensor leave(const torch::Tensor& x) override;

  Gpt2Shape shape_;
  std::shared_ptr<TableImpl> wte_;  // tokens, and the head: [vocab_size, width]
  std::shared_ptr<TableImpl> wpe_;  // positions: [context_length, width]
  torch::nn::ModuleList h_;         // the blocks
  torch::nn::LayerNorm ln_f_{nullptr};
};
TORCH_MODULE(Gpt2);

}  // namespace zero
