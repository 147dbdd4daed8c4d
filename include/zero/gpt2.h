#pragma once
// GPT-2 as a plain torch::nn::Module: it knows nothing of ranks, shards or devices.
// Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): pre-norm blocks, tanh GELU,
// learned positions, and a head that is the token embedding itself. Parameter names, shapes and the [in, out]
// order of linear weights are those of Hugging Face's GPT2Model, so their checkpoints map one to one.

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <memory>

#include "zero/gpt2_shape.h"

namespace zero {

class Gpt2EmbeddingImpl;

class Gpt2Impl : public torch::nn::Module {
 public:
  /// Initialises as GPT-2 does, from the default generator: weights normal(0, 0.02), those that write to the
  /// residual stream smaller by sqrt(2 * layers), biases 0, norm gains 1. Throws Config for an impossible
  /// shape.
  explicit Gpt2Impl(const Gpt2Shape& shape);

  /// tokens [batch, sequence] int64 -> logits [batch, sequence, vocab_size] in the parameters' dtype.
  /// Position i sees tokens 0..i only. Throws Config where the sequence is longer than the context, Usage for
  /// another rank or dtype, an empty sequence, or (on a CPU) a token outside the vocabulary.
  torch::Tensor forward(const torch::Tensor& tokens);

  /// Mean cross-entropy in nats over all positions, a scalar; targets [batch, sequence] int64, -100 is left
  /// out. The log-softmax is taken in fp32 (fp64 for fp64 parameters). Throws as forward, and for targets of
  /// another shape.
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets);

  const Gpt2Shape& shape() const { return shape_; }

 private:
  torch::Tensor hidden(const torch::Tensor& embedded);
  void check_tokens(const torch::Tensor& tokens) const;
  void require_targets(const torch::Tensor& targets) const;

  Gpt2Shape shape_;
  std::shared_ptr<Gpt2EmbeddingImpl> wte_;  // tokens, and the head: [vocab_size, width]
  std::shared_ptr<Gpt2EmbeddingImpl> wpe_;  // positions: [context_length, width]
  torch::nn::ModuleList h_;                 // the blocks
  torch::nn::LayerNorm ln_f_{nullptr};
};
TORCH_MODULE(Gpt2);

}  // namespace zero
