#pragma once
// Models as one writes them without a thought of ranks: one forward, a loop, whatever operators come to mind.

#include <torch/nn/functional.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <vector>

namespace zero::testing {

struct PlainShape {
  int64_t vocabulary = 53, width = 16, heads = 4, kv_heads = 2, layers = 4, length = 16;
  double dropout = 0;
};

/// Attention by hand in every other block, LibTorch's in the others.
struct PlainGptBlockImpl : torch::nn::Module {
  PlainGptBlockImpl(const PlainShape& shape, bool fused)
      : heads(shape.heads), is_fused(fused), p(shape.dropout) {
    const int64_t width = shape.width;
    ln_1 = register_module("ln_1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    c_attn = register_module("c_attn", torch::nn::Linear(width, 3 * width));
    c_proj = register_module("c_proj", torch::nn::Linear(width, width));
    ln_2 = register_module("ln_2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 4 * width));
    down = register_module("down", torch::nn::Linear(4 * width, width));
    drop = register_module("drop", torch::nn::Dropout(p));
  }
  at::Tensor attention(const at::Tensor& x) {
    const int64_t batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto parts = c_attn(x).split(width, 2);
    const auto per_head = [&](const at::Tensor& one) {
      return one.view({batch, length, heads, width / heads}).transpose(1, 2);
    };
    const at::Tensor q = per_head(parts[0]), k = per_head(parts[1]), v = per_head(parts[2]);
    at::Tensor y;
    if (is_fused) {
      y = torch::scaled_dot_product_attention(q, k, v, {}, is_training() ? p : 0.0, /*is_causal=*/true);
    } else {
      const at::Tensor seen = torch::ones({length, length}, torch::kBool).tril();
      at::Tensor scores = torch::matmul(q, k.transpose(-2, -1)) * (1.0 / std::sqrt(double(k.size(-1))));
      scores = scores.masked_fill(seen.logical_not(), -1e30);
      y = torch::matmul(drop(torch::softmax(scores, -1)), v);
    }
    return c_proj(y.transpose(1, 2).contiguous().view({batch, length, width}));
  }
  at::Tensor forward(at::Tensor x) {
    x = x + drop(attention(ln_1(x)));
    return x + drop(down(torch::gelu(up(ln_2(x)))));
  }
  int64_t heads;
  bool is_fused;
  double p;
  torch::nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  torch::nn::Linear c_attn{nullptr}, c_proj{nullptr}, up{nullptr}, down{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(PlainGptBlock);

/// GPT-2: its embedding is its head too.
struct PlainGpt : torch::nn::Module {
  explicit PlainGpt(const PlainShape& shape = {}) {
    wte = register_module("wte", torch::nn::Embedding(shape.vocabulary, shape.width));
    wpe = register_module("wpe", torch::nn::Embedding(shape.length, shape.width));
    h = register_module("h", torch::nn::ModuleList());
    for (int64_t i = 0; i < shape.layers; ++i) h->push_back(PlainGptBlock(shape, i % 2 == 0));
    ln_f = register_module("ln_f", torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width})));
  }
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets) {
    at::Tensor x = wte(tokens) + wpe(torch::arange(tokens.size(1)));
    for (const auto& block : *h) x = block->as<PlainGptBlockImpl>()->forward(x);
    const at::Tensor logits = torch::nn::functional::linear(ln_f(x), wte->weight);
    return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}).to(torch::kFloat),
                                                targets.reshape(-1));
  }
  torch::nn::Embedding wte{nullptr}, wpe{nullptr};
  torch::nn::ModuleList h{nullptr};
  torch::nn::LayerNorm ln_f{nullptr};
};

/// Its norm reads its weight last, rotary tables are made once for all blocks.
struct PlainLlamaBlockImpl : torch::nn::Module {
  explicit PlainLlamaBlockImpl(const PlainShape& shape)
      : heads(shape.heads), kv_heads(shape.kv_heads), head_width(shape.width / shape.heads) {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)));
    };
    norm_1 = register_parameter("norm_1", torch::ones(shape.width));
    norm_2 = register_parameter("norm_2", torch::ones(shape.width));
    q = linear("q", shape.width, shape.width), k = linear("k", shape.width, kv_heads * head_width);
    v = linear("v", shape.width, kv_heads * head_width), o = linear("o", shape.width, shape.width);
    gate = linear("gate", shape.width, 3 * shape.width), up = linear("up", shape.width, 3 * shape.width);
    down = linear("down", 3 * shape.width, shape.width);
  }
  static at::Tensor rms(const at::Tensor& x, const at::Tensor& weight) {
    return x * torch::rsqrt(x.pow(2).mean(-1, true) + 1e-5) * weight;
  }
  static at::Tensor turned(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
    const int64_t half = x.size(-1) / 2;
    return x * cos + torch::cat({-x.slice(-1, half), x.slice(-1, 0, half)}, -1) * sin;
  }
  at::Tensor forward(at::Tensor x, const at::Tensor& cos, const at::Tensor& sin) {
    const int64_t batch = x.size(0), length = x.size(1);
    const at::Tensor n = rms(x, norm_1);
    const auto per_head = [&](const at::Tensor& one) {
      return one.view({batch, length, -1, head_width}).transpose(1, 2);
    };
    const auto repeated = [&](const at::Tensor& one) { return one.repeat_interleave(heads / kv_heads, 1); };
    const at::Tensor y = torch::scaled_dot_product_attention(
        turned(per_head(q(n)), cos, sin), repeated(turned(per_head(k(n)), cos, sin)),
        repeated(per_head(v(n))), {}, 0.0, /*is_causal=*/true);
    x = x + o(y.transpose(1, 2).reshape({batch, length, -1}));
    const at::Tensor m = rms(x, norm_2);
    return x + down(torch::silu(gate(m)) * up(m));
  }
  int64_t heads, kv_heads, head_width;
  at::Tensor norm_1, norm_2;
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, o{nullptr}, gate{nullptr}, up{nullptr}, down{nullptr};
};
TORCH_MODULE(PlainLlamaBlock);

struct PlainLlama : torch::nn::Module {
  explicit PlainLlama(const PlainShape& shape = {}) : head_width(shape.width / shape.heads) {
    words = register_module("words", torch::nn::Embedding(shape.vocabulary, shape.width));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < shape.layers; ++i) layers->push_back(PlainLlamaBlock(shape));
    norm = register_parameter("norm", torch::ones(shape.width));
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(shape.width, shape.vocabulary).bias(false)));
    rates =
        register_buffer("rates", torch::pow(10000.0, -torch::arange(0, head_width, 2) / double(head_width)));
  }
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets) {
    const at::Tensor angles =
        torch::outer(torch::arange(tokens.size(1)).to(rates.dtype()), rates).repeat({1, 2});
    const at::Tensor cos = angles.cos(), sin = angles.sin();
    at::Tensor x = words(tokens);
    for (const auto& layer : *layers) x = layer->as<PlainLlamaBlockImpl>()->forward(x, cos, sin);
    const at::Tensor logits = head(PlainLlamaBlockImpl::rms(x, norm));
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), targets.reshape(-1));
  }
  int64_t head_width;
  torch::nn::Embedding words{nullptr};
  torch::nn::ModuleList layers{nullptr};
  at::Tensor norm, rates;
  torch::nn::Linear head{nullptr};
};

/// Down, through, up; each way up reads what the way down left, last first.
struct PlainUNet : torch::nn::Module {
  PlainUNet() {
    const auto conv = [&](const std::string& name, int64_t in, int64_t out) {
      return register_module(name, torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)));
    };
    down_1 = conv("down_1", 3, 4), down_2 = conv("down_2", 4, 6), middle = conv("middle", 6, 6);
    norm_1 = register_module("norm_1", torch::nn::BatchNorm2d(4));
    norm_2 = register_module("norm_2", torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, 6)));
    up_2 = conv("up_2", 12, 6), up_1 = conv("up_1", 10, 4), last = conv("last", 4, 1);
  }
  at::Tensor forward(const at::Tensor& image) {
    const at::Tensor first = torch::relu(norm_1(down_1(image)));
    const at::Tensor second = torch::silu(norm_2(down_2(torch::max_pool2d(first, 2))));
    at::Tensor x = middle(torch::avg_pool2d(second, 2));
    x = torch::relu_(x);
    x = torch::upsample_nearest2d(x, at::IntArrayRef({second.size(2), second.size(3)}));
    x = torch::relu(up_2(torch::cat({x, second}, 1)));
    x = torch::upsample_nearest2d(x, at::IntArrayRef({first.size(2), first.size(3)}));
    return last(torch::relu(up_1(torch::cat({x, first}, 1))));
  }
  torch::nn::Conv2d down_1{nullptr}, down_2{nullptr}, middle{nullptr}, up_2{nullptr}, up_1{nullptr},
      last{nullptr};
  torch::nn::BatchNorm2d norm_1{nullptr};
  torch::nn::GroupNorm norm_2{nullptr};
};

}  // namespace zero::testing
