#include "zero/llama.h"

#include <ATen/ops/silu.h>
#include <torch/nn/modules/container/modulelist.h>

#include "models/attention.h"
#include "models/layers.h"

namespace zero {
namespace {

class LlamaAttentionImpl : public torch::nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaShape& s) : head_width_(s.head_width) {
    const int64_t queries = s.heads * s.head_width, keys = s.kv_heads * s.head_width;
    q_proj_ = register_module("q_proj", Linear(s.width, queries, false));
    k_proj_ = register_module("k_proj", Linear(s.width, keys, false));
    v_proj_ = register_module("v_proj", Linear(s.width, keys, false));
    o_proj_ = register_module("o_proj", Linear(queries, s.width, false));
  }

  torch::Tensor forward(const torch::Tensor& x, const BlockContext& context, int64_t layer) {
    const Rotation& rotation = *context.rotation;
    const auto as_heads = [&](const torch::Tensor& t) {  // -> [batch, heads, sequence, head_width], a view
      return t.view({t.size(0), t.size(1), -1, head_width_}).transpose(1, 2);
    };
    const auto queries = rotation.apply(as_heads(q_proj_->forward(x)));
    const auto keys = rotation.apply(as_heads(k_proj_->forward(x)));
    const auto values = as_heads(v_proj_->forward(x));
    return o_proj_->forward(causal_attention(queries, keys, values, /*dropout=*/0, context.cache, layer));
  }

 private:
  int64_t head_width_;
  Linear q_proj_{nullptr}, k_proj_{nullptr}, v_proj_{nullptr}, o_proj_{nullptr};
};

class LlamaMlpImpl : public torch::nn::Module {
 public:
  explicit LlamaMlpImpl(const LlamaShape& s) {
    gate_proj_ = register_module("gate_proj", Linear(s.width, s.mlp_width, false));
    up_proj_ = register_module("up_proj", Linear(s.width, s.mlp_width, false));
    down_proj_ = register_module("down_proj", Linear(s.mlp_width, s.width, false));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return down_proj_->forward(torch::silu(gate_proj_->forward(x)) * up_proj_->forward(x));
  }

 private:
  Linear gate_proj_{nullptr}, up_proj_{nullptr}, down_proj_{nullptr};
};

class LlamaBlockImpl : public TransformerBlock {
 public:
  explicit LlamaBlockImpl(const LlamaShape& s) {
    self_attn_ = register_module("self_attn", std::make_shared<LlamaAttentionImpl>(s));
    mlp_ = register_module("mlp", std::make_shared<LlamaMlpImpl>(s));
    input_layernorm_ = register_module("input_layernorm", RmsNorm(s.width, s.norm_epsilon));
    post_attention_layernorm_ = register_module("post_attention_layernorm", RmsNorm(s.width, s.norm_epsilon));
  }

  torch::Tensor forward(const torch::Tensor& x, const BlockContext& context, int64_t layer) override {
    const auto y = x + self_attn_->forward(input_layernorm_->forward(x), context, layer);
    return y + mlp_->forward(post_attention_layernorm_->forward(y));
  }

 private:
  std::shared_ptr<LlamaAttentionImpl> self_attn_;
  std::shared_ptr<LlamaMlpImpl> mlp_;
  RmsNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
};

}  // namespace

/// All but the head.
class LlamaBodyImpl : public torch::nn::Module {
 public:
  explicit LlamaBodyImpl(const LlamaShape& s) {
    embed_tokens = register_module("embed_tokens", Table(s.vocab_size, s.width));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < s.layers; i++) layers->push_back(std::make_shared<LlamaBlockImpl>(s));
    norm = register_module("norm", RmsNorm(s.width, s.norm_epsilon));
  }

  Table embed_tokens{nullptr};
  torch::nn::ModuleList layers;
  RmsNorm norm{nullptr};
};

LlamaImpl::LlamaImpl(const LlamaShape& shape)
    : LanguageModel("llama", shape.vocab_size, shape.context_length), shape_(shape) {
  shape.check();
  model_ = register_module("model", std::make_shared<LlamaBodyImpl>(shape));
  if (!shape.tied_head)
    lm_head_ = register_module("lm_head", std::make_shared<TableImpl>(shape.vocab_size, shape.width));
}

std::shared_ptr<const Rotation> LlamaImpl::rotation(const torch::Tensor& x, int64_t begin) {
  return std::make_shared<const Rotation>(shape_.head_width, shape_.rope_theta, shape_.rope_scaling, begin,
                                          x.size(1), x);
}

torch::nn::ModuleListImpl& LlamaImpl::blocks() { return *model_->layers; }
torch::Tensor LlamaImpl::leave(const torch::Tensor& x) { return model_->norm->forward(x); }

const torch::Tensor& LlamaImpl::embedding_weight() const { return model_->embed_tokens->weight; }
const torch::Tensor& LlamaImpl::head_weight() const {
  return lm_head_ ? lm_head_->weight : embedding_weight();
}

}  // namespace zero
