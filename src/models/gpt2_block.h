#pragma once
// The parts of a GPT-2: linear layer, attention, MLP and block. Names as Hugging Face has them.

#include <torch/nn/module.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include "models/layers.h"
#include "zero/gpt2_shape.h"
#include "zero/language_model.h"

namespace zero {

/// x W + b with weight [in, out] and bias [out]. `residual_layers` > 0 marks a layer that writes to the
/// residual stream of that many blocks: two writes a block, so its weights start smaller by sqrt(2 *
/// residual_layers).
class Gpt2LinearImpl : public LinearLayerImpl {
 public:
  Gpt2LinearImpl(int64_t in, int64_t out, int64_t residual_layers = 0);
  torch::Tensor forward(const torch::Tensor& x) override;
};
TORCH_MODULE(Gpt2Linear);

/// Causal self-attention of a layer, [batch, sequence, width] -> the same.
class Gpt2AttentionImpl : public torch::nn::Module {
 public:
  explicit Gpt2AttentionImpl(const Gpt2Shape& shape);
  torch::Tensor forward(const torch::Tensor& x, KeyValueCache* cache, int64_t layer);

 private:
  int64_t heads_, head_width_;
  double dropout_;
  Gpt2Linear c_attn_{nullptr}, c_proj_{nullptr};
};
TORCH_MODULE(Gpt2Attention);

class Gpt2MlpImpl : public torch::nn::Module {
 public:
  explicit Gpt2MlpImpl(const Gpt2Shape& shape);
  torch::Tensor forward(const torch::Tensor& x);

 private:
  Gpt2Linear c_fc_{nullptr}, c_proj_{nullptr};
};
TORCH_MODULE(Gpt2Mlp);

/// x + attention(norm(x)), then the same with the MLP.
class Gpt2BlockImpl : public TransformerBlock {
 public:
  explicit Gpt2BlockImpl(const Gpt2Shape& shape);
  torch::Tensor forward(const torch::Tensor& x, const BlockContext& context, int64_t layer) override;

 private:
  double dropout_;
  torch::nn::LayerNorm ln_1_{nullptr};
  Gpt2Attention attn_{nullptr};
  torch::nn::LayerNorm ln_2_{nullptr};
  Gpt2Mlp mlp_{nullptr};
};
TORCH_MODULE(Gpt2Block);

}  // namespace zero
