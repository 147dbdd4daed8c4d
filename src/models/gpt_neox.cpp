#include "zero/gpt_neox.h"

#include <ATen/ops/gelu.h>
#include <torch/nn/modules/container/modulelist.h>

#include "models/attention.h"
#include "models/layers.h"

namespace zero {
namespace {

class NeoxAttentionImpl : public torch::nn::Module {
 public:
  explicit NeoxAttentionImpl(const GptNeoxShape& s) : heads_(s.heads), head_width_(s.head_width()) {
    query_key_value_ = register_module("query_key_value", Linear(s.width, 3 * s.width, true));
    dense_ = register_module("dense", Linear(s.width, s.width, true));
  }

  torch::Tensor forward(const torch::Tensor& x, const BlockContext& context, int64_t layer) {
    const Rotation& rotation = *context.rotation;
    // The rows of a head's query, key and value lie beside each other.
    const auto qkv = query_key_value_->forward(x)
                         .view({x.size(0), x.size(1), heads_, 3 * head_width_})
                         .transpose(1, 2)
                         .split(head_width_, /*dim=*/3);
    const auto queries = rotation.apply(qkv[0]), keys = rotation.apply(qkv[1]);
    return dense_->forward(causal_attention(queries, keys, qkv[2], /*dropout=*/0, context.cache, layer));
  }

 private:
  int64_t heads_, head_width_;
  Linear query_key_value_{nullptr}, dense_{nullptr};
};

class NeoxMlpImpl : public torch::nn::Module {
 public:
  explicit NeoxMlpImpl(const GptNeoxShape& s) : tanh_gelu_(s.tanh_gelu) {
    dense_h_to_4h_ = register_module("dense_h_to_4h", Linear(s.width, s.mlp_width, true));
    dense_4h_to_h_ = register_module("dense_4h_to_h", Linear(s.mlp_width, s.width, true));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto inner = dense_h_to_4h_->forward(x);
    return dense_4h_to_h_->forward(torch::gelu(inner, tanh_gelu_ ? "tanh" : "none"));
  }

 private:
  bool tanh_gelu_;
  Linear dense_h_to_4h_{nullptr}, dense_4h_to_h_{nullptr};
};

class NeoxBlockImpl : public TransformerBlock {
 public:
  explicit NeoxBlockImpl(const GptNeoxShape& s) : parallel_(s.parallel_residual) {
    input_layernorm_ = register_module("input_layernorm", layer_norm(s.width, s.norm_epsilon));
    post_attention_layernorm_ =
        register_module("post_attention_layernorm", layer_norm(s.width, s.norm_epsilon));
    attention_ = register_module("attention", std::make_shared<NeoxAttentionImpl>(s));
    mlp_ = register_module("mlp", std::make_shared<NeoxMlpImpl>(s));
  }

  torch::Tensor forward(const torch::Tensor& x, const BlockContext& context, int64_t layer) override {
    const auto attended = attention_->forward(input_layernorm_->forward(x), context, layer);
    if (parallel_) return mlp_->forward(post_attention_layernorm_->forward(x)) + attended + x;
    const auto y = attended + x;
    return mlp_->forward(post_attention_layernorm_->forward(y)) + y;
  }

 private:
  bool parallel_;
  torch::nn::LayerNorm input_layernorm_{nullptr}, post_attention_layernorm_{nullptr};
  std::shared_ptr<NeoxAttentionImpl> attention_;
  std::shared_ptr<NeoxMlpImpl> mlp_;
};

}  // namespace

/// All but the head.
class GptNeoxBodyImpl : public torch::nn::Module {
 public:
  explicit GptNeoxBodyImpl(const GptNeoxShape& s) {
    embed_in = register_module("embed_in", Table(s.vocab_size, s.width));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < s.layers; i++) layers->push_back(std::make_shared<NeoxBlockImpl>(s));
    final_layer_norm = register_module("final_layer_norm", layer_norm(s.width, s.norm_epsilon));
  }

  Table embed_in{nullptr};
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm final_layer_norm{nullptr};
};

GptNeoxImpl::GptNeoxImpl(const GptNeoxShape& shape)
    : LanguageModel("gpt_neox", shape.vocab_size, shape.context_length), shape_(shape) {
  shape.check();
  gpt_neox_ = register_module("gpt_neox", std::make_shared<GptNeoxBodyImpl>(shape));
  if (!shape.tied_head)
    embed_out_ = register_module("embed_out", std::make_shared<TableImpl>(shape.vocab_size, shape.width));
}

std::shared_ptr<const Rotation> GptNeoxImpl::rotation(const torch::Tensor& x, int64_t begin) {
  return std::make_shared<const Rotation>(shape_.rotary_width(), shape_.rope_theta, RopeScaling{}, begin,
                                          x.size(1), x);
}

torch::nn::ModuleListImpl& GptNeoxImpl::blocks() { return *gpt_neox_->layers; }
torch::Tensor GptNeoxImpl::leave(const torch::Tensor& x) { return gpt_neox_->final_layer_norm->forward(x); }

const torch::Tensor& GptNeoxImpl::embedding_weight() const { return gpt_neox_->embed_in->weight; }
const torch::Tensor& GptNeoxImpl::head_weight() const {
  return embed_out_ ? embed_out_->weight : embedding_weight();
}

}  // namespace zero
