#include "models/gpt2_block.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "models/attention.h"

namespace zero {
Gpt2LinearImpl::Gpt2LinearImpl(int64_t in, int64_t out, int64_t residual_layers) : LinearLayerImpl(in, out) {
  double deviation = kInitialDeviation;
  if (residual_layers > 0) deviation /= std::sqrt(2.0 * static_cast<double>(residual_layers));
  weight = register_parameter("weight", torch::empty({in, out}).normal_(0, deviation));
  bias = register_parameter("bias", torch::zeros({out}));
}

torch::Tensor Gpt2LinearImpl::forward(const torch::Tensor& x) {
  // LibTorch computes it as one addmm of all positions; here batch and sequence stay apart, which may be cut.
  return adapted(torch::linear(x, weight.t(), bias), x);
}

Gpt2AttentionImpl::Gpt2AttentionImpl(const Gpt2Shape& shape)
    : heads_(shape.heads), head_width_(shape.head_width()), dropout_(shape.dropout) {
  c_attn_ = register_module("c_attn", Gpt2Linear(shape.width, 3 * shape.width));
  c_proj_ = register_module("c_proj", Gpt2Linear(shape.width, shape.width, shape.layers));
}

torch::Tensor Gpt2AttentionImpl::forward(const torch::Tensor& x, KeyValueCache* cache, int64_t layer) {
  const int64_t batch = x.size(0), sequence = x.size(1), width = x.size(2);
  // Split first, then view as heads: the backward of split gathers the three gradients in one copy.
  auto qkv = c_attn_->forward(x).split(width, /*dim=*/-1);
  auto as_heads = [&](const torch::Tensor& t) {  // -> [batch, heads, sequence, head_width], a view
    return t.view({batch, sequence, heads_, head_width_}).transpose(1, 2);
  };
  const double dropout = is_training() ? dropout_ : 0.0;
  const auto y = c_proj_->forward(
      causal_attention(as_heads(qkv[0]), as_heads(qkv[1]), as_heads(qkv[2]), dropout, cache, layer));
  return torch::dropout(y, dropout_, is_training());
}

Gpt2MlpImpl::Gpt2MlpImpl(const Gpt2Shape& shape) {
  c_fc_ = register_module("c_fc", Gpt2Linear(shape.width, 4 * shape.width));
  c_proj_ = register_module("c_proj", Gpt2Linear(4 * shape.width, shape.width, shape.layers));
}

torch::Tensor Gpt2MlpImpl::forward(const torch::Tensor& x) {
  return c_proj_->forward(torch::gelu(c_fc_->forward(x), "tanh"));
}

Gpt2BlockImpl::Gpt2BlockImpl(const Gpt2Shape& shape) : dropout_(shape.dropout) {
  ln_1_ = register_module("ln_1", layer_norm(shape.width, shape.layer_norm_epsilon));
  attn_ = register_module("attn", Gpt2Attention(shape));
  ln_2_ = register_module("ln_2", layer_norm(shape.width, shape.layer_norm_epsilon));
  mlp_ = register_module("mlp", Gpt2Mlp(shape));
}

torch::Tensor Gpt2BlockImpl::forward(const torch::Tensor& x, const BlockContext& context, int64_t layer) {
  const auto y = x + attn_->forward(ln_1_->forward(x), context.cache, layer);
  return y + torch::dropout(mlp_->forward(ln_2_->forward(y)), dropout_, is_training());
}

}  // namespace zero
