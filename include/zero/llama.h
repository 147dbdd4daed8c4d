#pragma once
// Llama, a LanguageModel: pre-norm blocks with RMSNorm, rotated queries and keys, shared keys and values, and
// a gated MLP (SwiGLU). Parameter names, shapes and the [out, in] order of linear weights are those of
// Hugging Face's LlamaForCausalLM.

#include <torch/nn/pimpl.h>

#include <memory>

#include "zero/language_model.h"
#include "zero/llama_shape.h"

namespace zero {

class LlamaBodyImpl;
class TableImpl;

class LlamaImpl : public LanguageModel {
 public:
  /// Initialises from the default generator: weights normal(0, 0.02), norm gains 1. Throws Config for an
  /// impossible shape.
  explicit LlamaImpl(const LlamaShape& shape);

  const LlamaShape& shape() const { return shape_; }

 private:
  const torch::Tensor& embedding_weight() const override;
  const torch::Tensor& head_weight() const override;
  std::shared_ptr<const Rotation> rotation(const torch::Tensor& x, int64_t begin) override;
  torch::nn::ModuleListImpl& blocks() override;
  torch::Tensor leave(const torch::Tensor& x) override;

  LlamaShape shape_;
  std::shared_ptr<LlamaBodyImpl> model_;
  std::shared_ptr<TableImpl> lm_head_;  // nullptr where the head is the embedding
};
TORCH_MODULE(Llama);

}  // namespace zero
