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
  torch::Tensor hidden(const torch::Tensor& embedded, KeyValueCache* cache) override;
  const torch::Tensor& embedding_weight() const override;
  const torch::Tensor& head_weight() const override;

  GptNeoxShape shape_;
  std::shared_ptr<GptNeoxBodyImpl> gpt_neox_;
  std::shared_ptr<TableImpl> embed_out_;  // nullptr where the head is the embedding
};
TORCH_MODULE(GptNeox);

}  // namespace zero
