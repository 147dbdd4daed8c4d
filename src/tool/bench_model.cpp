#include "bench_model.h"

#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>

#include "train/model_stages.h"
#include "zero/gpt2.h"
#include "zero/gpt2_shape.h"
#include "zero/language_model_plan.h"
#include "zero/lazy.h"

namespace zero::tool {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;
using torch::Tensor;

struct PlainBlockImpl : nn::Module {
  PlainBlockImpl(int64_t width, int64_t heads) : heads(heads) {
    ln_1 = register_module("ln_1", nn::LayerNorm(nn::LayerNormOptions({width})));
    qkv = register_module("qkv", nn::Linear(width, 3 * width));
    proj = register_module("proj", nn::Linear(width, width));
    ln_2 = register_module("ln_2", nn::LayerNorm(nn::LayerNormOptions({width})));
    fc_in = register_module("fc_in", nn::Linear(width, 4 * width));
    fc_out = register_module("fc_out", nn::Linear(4 * width, width));
  }

  Tensor forward(Tensor x) {
    const int64_t batch = x.size(0), sequence = x.size(1), width = x.size(2);
    auto parts = qkv(ln_1(x)).split(width, 2);
    auto as_heads = [&](const Tensor& t) {
      return t.view({batch, sequence, heads, width / heads}).transpose(1, 2);
    };
    auto y =
        at::scaled_dot_product_attention(as_heads(parts[0]), as_heads(parts[1]), as_heads(parts[2]), {}, 0.0,
                                         /*is_causal=*/true);
    x = x + proj(y.transpose(1, 2).reshape({batch, sequence, width}));
    return x + fc_out(F::gelu(fc_in(ln_2(x)), F::GELUFuncOptions().approximate("tanh")));
  }

  int64_t heads;
  nn::LayerNorm ln_1{nullptr}, ln_2{nullptr};
  nn::Linear qkv{nullptr}, proj{nullptr}, fc_in{nullptr}, fc_out{nullptr};
};
TORCH_MODULE(PlainBlock);

struct PlainGpt2 : nn::Module {
  explicit PlainGpt2(const Gpt2Shape& shape) : vocabulary(shape.vocab_size) {
    wte = register_module("wte", nn::Embedding(shape.vocab_size, shape.width));
    wpe = register_module("wpe", nn::Embedding(shape.context_length, shape.width));
    blocks = register_module("blocks", nn::ModuleList());
    for (int64_t i = 0; i < shape.layers; ++i) blocks->push_back(PlainBlock(shape.width, shape.heads));
    ln_f = register_module("ln_f", nn::LayerNorm(nn::LayerNormOptions({shape.width})));
    at::NoGradGuard no_grad;
    const double residual = std::pow(2.0 * static_cast<double>(shape.layers), -0.5);
    for (auto& item : named_parameters()) {
      const std::string& name = item.key();
      const bool writes_residual = name.ends_with("proj.weight") || name.ends_with("fc_out.weight");
      if (name.ends_with("bias")) item.value().zero_();
      if (item.value().dim() == 2) item.value().normal_(0, 0.02 * (writes_residual ? residual : 1.0));
    }
  }

  Tensor loss(const Tensor& tokens, const Tensor& targets) {
    return last_loss(run_blocks(first_part(tokens), 0, std::ssize(*blocks)), targets);
  }

  Tensor first_part(const Tensor& tokens) {
    return wte(tokens) + wpe(at::arange(tokens.size(1), tokens.options()));
  }
  Tensor run_blocks(const Tensor& x, int64_t first, int64_t last) {
    return chain.run(x, first, last, [this](const Tensor& in, int64_t i) {
      return blocks[i]->as<PlainBlockImpl>()->forward(in);
    });
  }
  Tensor last_loss(const Tensor& x, const Tensor& targets) {
    Tensor logits = F::linear(ln_f(x), wte->weight);
    return F::cross_entropy(logits.to(at::kFloat).view({-1, vocabulary}), targets.reshape({-1}));
  }

  int64_t vocabulary;
  BlockChain chain;
  nn::Embedding wte{nullptr}, wpe{nullptr};
  nn::ModuleList blocks;
  nn::LayerNorm ln_f{nullptr};
};

std::vector<PipelineStage> stages_of_plain(const std::shared_ptr<PlainGpt2>& model,
                                           const std::vector<int64_t>& blocks) {
  std::vector<PipelineStage> stages(blocks.size());
  int64_t begin = 0;
  for (size_t s = 0; s < blocks.size(); ++s) {
    const int64_t end = begin + blocks[s];
    const bool is_first = s == 0;
    if (is_first) stages[s].parameters = {"wte.*", "wpe.*"};
    for (int64_t i = begin; i < end; ++i)
      stages[s].parameters.push_back("blocks." + std::to_string(i) + ".*");
    stages[s].forward = [model, is_first, begin, end](const StageTensors& inputs, int) {
      const Tensor x = is_first ? model->first_part(inputs.at(0)) : inputs.at(0);
      return StageTensors{model->run_blocks(x, begin, end)};
    };
    begin = end;
  }
  if (stages.size() > 1) stages.back().parameters.emplace_back("wte.*");
  stages.back().parameters.emplace_back("ln_f.*");
  return stages;
}

TensorParallelPlan plan_of_plain() {
  return {{"wte.weight", "vocab"},
          {"blocks.*.qkv.*", "fused[3]"},
          {"blocks.*.proj.weight", "rowwise"},
          {"blocks.*.fc_in.*", "colwise"},
          {"blocks.*.fc_out.weight", "rowwise"}};
}

}  // namespace

Gpt2Shape bench_shape(const std::string& name) {
  return name == "tiny" ? Gpt2Shape{.layers = 2, .width = 128, .heads = 4} : gpt2_shape(name);
}

BenchModel make_bench_model(const std::string& name, bool plain, int64_t context,
                            const RecomputePolicy& recompute) {
  Gpt2Shape shape = bench_shape(name);
  shape.context_length = context;
  shape.dropout = 0;
  BenchModel model;
  model.shape = shape;
  if (plain) {
    auto gpt2 = lazily([&] { return std::make_shared<PlainGpt2>(shape); });
    model.loss = [gpt2](const Tensor& tokens, const Tensor& targets) { return gpt2->loss(tokens, targets); };
    model.stages = [gpt2](const std::vector<int64_t>& blocks) { return stages_of_plain(gpt2, blocks); };
    model.last_loss = [gpt2](const Tensor& x, const Tensor& targets) { return gpt2->last_loss(x, targets); };
    model.tensor_plan = [](int) { return plan_of_plain(); };
    gpt2->chain = BlockChain(recompute);
    model.chain = &gpt2->chain;
    model.module = gpt2;
  } else {
    Gpt2 gpt2 = lazily([&] { return Gpt2(shape); });
    model.loss = [gpt2](const Tensor& tokens, const Tensor& targets) mutable {
      return gpt2->loss(tokens, targets);
    };
    const std::shared_ptr<Gpt2Impl> shared = gpt2.ptr();
    model.stages = [shared](const std::vector<int64_t>& blocks) {
      return training::stages_of_model(shared, blocks, [](int) {});
    };
    model.last_loss = [shared](const Tensor& x, const Tensor& targets) {
      return shared->last_part_loss(x, targets);
    };
    model.tensor_plan = [shared, shape](int ranks) { return tensor_parallel_plan(*shared, shape, ranks); };
    gpt2->set_recompute(recompute);
    model.chain = &gpt2->block_chain();
    model.module = gpt2.ptr();
  }
  for (const Tensor& parameter : model.module->parameters()) model.parameters += parameter.numel();
  return model;
}

}  // namespace zero::tool
