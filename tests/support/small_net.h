#pragma once
// A small language-model-like module for engine tests: tied embedding, a list of residual blocks, odd sizes
// so that nothing divides.

#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <vector>

#include "support/test_device.h"

namespace zero::testing {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        up(register_module("up", torch::nn::Linear(width, 3 * width))),
        down(register_module("down", torch::nn::Linear(3 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(int64_t vocabulary = 29, int64_t width = 10, int blocks = 3)
      : embedding(register_module("embedding", torch::nn::Embedding(vocabulary, width))),
        layers(register_module("layers", torch::nn::ModuleList())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))) {
    for (int i = 0; i < blocks; ++i) layers->push_back(Block(width));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = embedding(tokens);
    for (const auto& layer : *layers) x = layer->as<BlockImpl>()->forward(x);
    return torch::nn::functional::linear(norm(x), embedding->weight);
  }
  torch::Tensor loss(const torch::Tensor& tokens, const torch::Tensor& targets) {
    torch::Tensor logits = forward(tokens);
    return torch::nn::functional::cross_entropy(logits.flatten(0, -2).to(torch::kFloat), targets.flatten());
  }
  torch::nn::Embedding embedding;
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(SmallNet);

struct Batch {
  torch::Tensor tokens, targets;  // [samples, 7]
  Batch rows(int64_t begin, int64_t count) const {
    return {tokens.narrow(0, begin, count), targets.narrow(0, begin, count)};
  }
};

/// The same batch for every rank: `samples` sequences of step `step`.
inline Batch batch_of(int64_t step, int64_t samples, int64_t vocabulary = 29) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(1000 + step));
  auto all = torch::randint(0, vocabulary, {samples, 8}, generator, torch::kLong);
  all = all.to(test_device());
  return {all.narrow(1, 0, 7).contiguous(), all.narrow(1, 1, 7).contiguous()};
}

}  // namespace zero::testing
