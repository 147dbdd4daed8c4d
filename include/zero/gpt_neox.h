#pragma once
// GPT-NeoX, a LanguageModel: LayerNorm, biases, a part of each head rotated, and attention and MLP that read
// the same input. Parameter names, shapes and the [out, in] order of linear weights are those of Hugging
// Face's GPTNeoXForCausalLM.

#include <torch/nn/pimpl.h>

#include <memory>

#include "zero/gpt_neox_shape.h"
#include "zero/language_model.h"

namespace zero {

class GptNeoxBodyImpl;
class TableImpl;

class GptNeoxImpl : public LanguageModel {
 public:
  /// Initialises from the default generator: weights normal(0, 0.02), biases 0, norm gains 1. Throws Config
  /// for an impossible shape.
  explicit GptNeoxImpl(const GptNeoxShape& shape);

  const GptNeoxShape& shape() const { return shape_; }

 private:
  const torch::Tensor& embedding_weight() const override;
  const torch::Tensor& head_weight() const override;
  std::shared_ptr<const Rotation> rotation(const torch::Tensor& x, int64_t begin) override;
  torch::nn::ModuleListImpl& blocks() override;
  torch::Tensor leave(const torch::Tensor& x) override;

  GptNeoxShape shape_;
  std::shared_ptr<GptNeoxBodyImpl> gpt_neox_;
  std::shared_ptr<TableImpl> embed_out_;  // nullptr where the head is the embedding
};
TORCH_MODULE(GptNeox);

}  // namespace zero
