// Parameters that stay fp32 in a narrower model, LibTorch's autocast around forwards, and the types that
// gradients travel and are added up in.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adamw.h>
#include <torch/script.h>
#include <torch/utils.h>

#include <map>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"
#include "zero/gpt2.h"
#include "zero/llama.h"

namespace {
using namespace zero::testing;
using torch::Tensor;

using Values = std::map<std::string, Tensor>;
constexpr int kSteps = 4;
const zero::AdamW kRule{.lr = 1e-2, .eps = 1e-4};

Values values_of(zero::Engine& engine) {
  Values all;
  for (const std::string& name : engine.parameter_names()) all[name] = engine.full_parameter(name);
  return all;
}

void expect_same(const Values& a, const Values& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) EXPECT_TRUE(torch::equal(values, b.at(name))) << what << ", " << name;
}

// SmallNet with the casts written out, as wide_operators.h says they are made.
struct CastNet {
  SmallNet net;
  Tensor loss(const Tensor& tokens, const Tensor& targets) {
    const auto norm = [](torch::nn::LayerNorm& layer, const Tensor& x) {
      return layer(x.to(torch::kFloat)).to(torch::kBFloat16);
    };
    Tensor x = net->embedding(tokens).to(torch::kBFloat16);
    for (const auto& layer : *net->layers) {
      auto* block = layer->as<BlockImpl>();
      x = x + block->down(torch::gelu(block->up(norm(block->norm, x))));
    }
    const Tensor logits =
        torch::nn::functional::linear(norm(net->norm, x).to(torch::kFloat), net->embedding->weight)
            .to(torch::kBFloat16);
    return torch::nn::functional::cross_entropy(logits.flatten(0, -2).to(torch::kFloat), targets.flatten());
  }
};

TEST(Fp32Parameters, OperatorsThatReadThemComputeInFp32) {
  for (const int ranks : {1, 2})
    for (const int stage : {0, 2, 3})
      run_ranks(ranks, [stage](const zero::Mesh& mesh) {
        torch::manual_seed(5);
        SmallNet model;
        for (const Tensor& parameter : model->parameters())  // so that masters begin alike
          parameter.set_data(parameter.to(torch::kBFloat16).to(torch::kFloat));
        zero::EngineOptions options{.stage = stage, .dtype = torch::kBFloat16};
        options.fp32_parameters = {"*norm.*", "embedding.*"};
        zero::Engine engine(*model, kRule, options, mesh);
        torch::manual_seed(5);
        CastNet by_hand;
        for (const Tensor& parameter : by_hand.net->parameters())
          parameter.set_data(parameter.to(torch::kBFloat16).to(torch::kFloat));
        for (auto& parameter : by_hand.net->named_parameters())
          if (parameter.key().find("up") != std::string::npos ||
              parameter.key().find("down") != std::string::npos)
            parameter.value().set_data(parameter.value().to(torch::kBFloat16));
        zero::EngineOptions plain{.stage = stage};
        zero::Engine reference(*by_hand.net, kRule, plain, mesh);
        for (int step = 0; step < kSteps; ++step) {
          const Batch batch = batch_of(step, 2 * mesh.size()).rows(2 * mesh.rank(), 2);
          const Tensor a = engine.forward([&] { return model->loss(batch.tokens, batch.targets); }),
                       b = reference.forward([&] { return by_hand.loss(batch.tokens, batch.targets); });
          EXPECT_EQ(a.item<float>(), b.item<float>()) << step;
          engine.backward(a);
          reference.backward(b);
          for (const char* const name : {"layers.1.norm.weight", "embedding.weight"})
            EXPECT_TRUE(torch::equal(engine.full_gradient(name), reference.full_gradient(name))) << name;
          engine.step();
          reference.step();
        }
        const Tensor gradient = engine.full_parameter("layers.1.norm.weight");
        EXPECT_FALSE(torch::equal(gradient.to(torch::kBFloat16).to(torch::kFloat), gradient));
        expect_same(values_of(engine), values_of(reference), "stage " + std::to_string(stage));
        EXPECT_EQ(model->norm->weight.scalar_type(), torch::kFloat);
        EXPECT_EQ(model->layers[0]->as<BlockImpl>()->up->weight.scalar_type(), torch::kBFloat16);
        torch::NoGradGuard no_grad;
        const Batch batch = batch_of(9, 2);
        const Tensor logits = engine.forward([&] { return model->forward(batch.tokens); });
        EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
      });
}

TEST(Fp32Parameters, UnitsHaveOneTypeEachAndTheSummarySaysWhich) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    SmallNet model;
    zero::EngineOptions options{.dtype = torch::kBFloat16};
    options.fp32_parameters = {"*norm.*"};
    options.groups = {{.pattern = "*bias", .weight_decay = 0}};
    zero::Engine engine(*model, kRule, options, mesh);
    int64_t wide = 0;
    for (const zero::UnitLayout& unit : engine.plan().units)
      for (const zero::UnitParameter& parameter : unit.parameters) {
        const bool is_norm = parameter.name.find("norm") != std::string::npos;
        EXPECT_EQ(unit.dtype, is_norm ? zero::Dtype::f32 : zero::Dtype::bf16) << parameter.name;
        wide += is_norm ? parameter.numel : 0;
      }
    EXPECT_EQ(wide, 80);
    const auto summary = engine.parameter_summary();
    const auto line = std::find_if(summary.begin(), summary.end(), [](const zero::ParameterSummary& one) {
      return one.pattern == "layers.*.norm.bias";
    });
    ASSERT_NE(line, summary.end()) << zero::to_text(summary);
    EXPECT_EQ(*line, (zero::ParameterSummary{.pattern = "layers.*.norm.bias",
                                             .count = 3,
                                             .numel = 30,
                                             .rule = "AdamW",
                                             .group = "*bias",
                                             .lr = 1e-2,
                                             .weight_decay = 0,
                                             .dtype = zero::Dtype::f32,
                                             .master = "itself"}));
  });
}

TEST(Fp32Parameters, ModelsOfOursTrainAndRecomputeWithTheSameBits) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    std::map<bool, Values> after;
    for (const bool recompute : {false, true}) {
      torch::manual_seed(3);
      zero::Gpt2 model(
          zero::Gpt2Shape{.vocab_size = 60, .context_length = 16, .layers = 3, .width = 16, .heads = 2});
      if (recompute) model->set_recompute(zero::RecomputePolicy{.every = 1});
      zero::EngineOptions options{.stage = 3, .dtype = torch::kBFloat16};
      options.fp32_parameters = {"*ln_*", "wte.*"};
      zero::Engine engine(*model, kRule, options, mesh);
      double first = 0, last = 0;
      for (int step = 0; step < 12; ++step) {
        const Tensor tokens = batch_of(0, 2, 60).tokens, targets = batch_of(0, 2, 60).targets;
        const Tensor loss = engine.forward([&] { return model->loss(tokens, targets); });
        (step == 0 ? first : last) = loss.item<double>();
        engine.backward(loss);
        engine.step();
      }
      EXPECT_LT(last, first - 0.5);
      after[recompute] = values_of(engine);
    }
    expect_same(after[false], after[true], "recomputed");
  });
}

TEST(Fp32Parameters, TorchScriptToo) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    torch::jit::Module module("m");
    torch::manual_seed(2);
    module.register_parameter("weight", torch::randn({5, 4}).set_requires_grad(true), false);
    module.register_parameter("scale", torch::randn({4}).set_requires_grad(true), false);
    module.define(R"(
def forward(self, x):
    return torch.linear(torch.layer_norm(x, [4], self.scale), self.weight).sum()
)");
    zero::EngineOptions options{.dtype = torch::kBFloat16};
    options.fp32_parameters = {"scale"};
    zero::Engine engine(module, zero::SGD{.lr = 0.1}, options, mesh);
    const Tensor x = torch::randn({3, 4}).to(torch::kBFloat16);
    const Tensor got = engine.forward([&] { return module.forward({x}).toTensor(); });
    EXPECT_EQ(got.scalar_type(), torch::kBFloat16);
    const Tensor scale = engine.full_parameter("scale"),
                 weight = engine.full_parameter("weight").to(torch::kBFloat16);
    const Tensor normed = torch::layer_norm(x.to(torch::kFloat), {4}, scale).to(torch::kBFloat16);
    EXPECT_EQ(got.item<float>(), torch::linear(normed, weight).sum().item<float>());
    engine.backward(got);
    engine.step();
  });
}

TEST(Fp32Parameters, WhatCannotBeIsRefused) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    zero::EngineOptions options{.dtype = torch::kBFloat16};
    options.fp32_parameters = {"*nowhere*"};
    SmallNet model;
    EXPECT_ERROR(zero::Engine(*model, kRule, options, mesh), Config,
                 "fp32_parameters: \"*nowhere*\" matches no floating-point parameter");
    SmallNet other;
    options.fp32_parameters = {"norm.weight"};
    zero::Engine engine(*other, kRule, options, mesh);
    EXPECT_ERROR(
        engine.forward([&] { return torch::ones({10}, torch::kBFloat16).mul_(other->norm->weight).sum(); }),
        Unsupported, "aten::mul_ writes into an argument that is not fp32");
    torch::nn::Sequential normed(torch::nn::BatchNorm1d(4));
    options.fp32_parameters = {"0.weight"};
    zero::Engine second(*normed, kRule, options, mesh);
    EXPECT_ERROR(second.forward([&] {
      return normed->forward(torch::ones({2, 4}, torch::kBFloat16));
    }),
                 Unsupported, "keeps statistics in buffers that are not fp32");
  });
}

TEST(Autocast, EqualsLibTorchsOwnAroundAPlainModel) {
  for (const int stage : {0, 3})
    run_ranks(2, [stage](const zero::Mesh& mesh) {
      torch::manual_seed(5);
      SmallNet plain, model;
      {
        torch::NoGradGuard no_grad;
        auto from = plain->parameters(), to = model->parameters();
        for (size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
      }
      torch::optim::AdamW reference(plain->parameters(),
                                    torch::optim::AdamWOptions(1e-2).eps(1e-4).weight_decay(0.01));
      zero::EngineOptions options{.stage = stage};
      options.autocast = torch::kBFloat16;
      options.cpu_operators = false;  // LibTorch's bits
      zero::Engine engine(*model, kRule, options, mesh);
      for (int step = 0; step < kSteps; ++step) {
        const Batch batch = batch_of(step, 2);  // the same on both ranks
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
        reference.zero_grad();
        const Tensor expected = plain->loss(batch.tokens, batch.targets);
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
        expected.backward();
        reference.step();
        const Tensor loss = engine.forward([&] {
          const Tensor product = torch::mm(torch::ones({2, 2}), torch::ones({2, 2}));
          EXPECT_EQ(product.scalar_type(), torch::kBFloat16);
          return model->loss(batch.tokens, batch.targets);
        });
        EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
        EXPECT_NEAR(loss.item<float>(), expected.item<float>(), step == 0 ? 0 : 1e-4) << step;
        engine.backward(loss);
        engine.step();
      }
      for (const auto& parameter : plain->named_parameters()) {
        const Tensor got = engine.full_parameter(parameter.key());
        EXPECT_TRUE(torch::allclose(got, parameter.value(), 1e-3, 1e-4)) << parameter.key();
        EXPECT_FALSE(torch::equal(got, got.to(torch::kBFloat16).to(torch::kFloat))) << parameter.key();
      }
    });
}

TEST(Autocast, ModelsOfOursTrainAndRecomputeWithTheSameBits) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    std::map<bool, Values> after;
    for (const bool recompute : {false, true}) {
      torch::manual_seed(3);
      zero::Llama model(zero::LlamaShape{.vocab_size = 60,
                                         .context_length = 16,
                                         .layers = 3,
                                         .width = 16,
                                         .heads = 2,
                                         .kv_heads = 2,
                                         .head_width = 8,
                                         .mlp_width = 40});
      if (recompute) model->set_recompute(zero::RecomputePolicy{.every = 1});
      zero::EngineOptions options{.stage = 3};
      options.autocast = torch::kBFloat16;
      zero::Engine engine(*model, kRule, options, mesh);
      double first = 0, last = 0;
      for (int step = 0; step < 12; ++step) {
        const Batch batch = batch_of(0, 2, 60);
        const Tensor loss = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
        (step == 0 ? first : last) = loss.item<double>();
        engine.backward(loss);
        engine.step();
      }
      EXPECT_LT(last, first - 0.5);
      after[recompute] = values_of(engine);
    }
    expect_same(after[false], after[true], "recomputed");
  });
}

TEST(Autocast, WhatMakesNoSenseIsRefused) {
  zero::EngineOptions options{.dtype = torch::kBFloat16};
  options.autocast = torch::kBFloat16;
  EXPECT_ERROR(zero::make_plan({}, options), Config, "autocast: parameters are not fp32");
  options.dtype = {};
  options.autocast = torch::kHalf;
  EXPECT_ERROR(zero::make_plan({}, options), Config, "gradients in fp16 need loss scaling");
  options.autocast = torch::kFloat;
  EXPECT_ERROR(zero::make_plan({}, options), Config, "autocast: expected bf16 or fp16");
}

// Three micro-batches a step. What is exact stays exact, what is rounded stays near.
struct GradientRun {
  std::vector<double> losses;
  Values values;
  double norm = 0;
};

GradientRun train_with(const zero::Mesh& mesh, int stage, at::ScalarType dtype,
                       std::optional<zero::DtypeOption> wire, zero::DtypeOption sums) {
  torch::manual_seed(5);
  SmallNet model;
  zero::EngineOptions options{.stage = stage, .dtype = dtype, .accumulation_steps = 3};
  options.communication_dtype = wire;
  options.accumulation_dtype = sums;
  options.group_numel = 200;
  options.gradient_clipping = 1;
  if (dtype == torch::kHalf || sums == zero::Dtype::f16 || (wire && *wire == zero::Dtype::f16))
    options.loss_scaling = zero::LossScaling{.initial_scale_power = 6};
  zero::Engine engine(*model, zero::AdamW{.lr = 5e-3, .eps = 1e-4}, options, mesh);
  GradientRun run;
  for (int step = 0; step < kSteps; ++step) {
    for (int micro = 0; micro < 3; ++micro) {
      const Batch batch = batch_of(3 * step + micro, 2 * mesh.size()).rows(2 * mesh.rank(), 2);
      const Tensor loss = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
      run.losses.push_back(loss.item<double>());
      engine.backward(loss);
    }
    const zero::StepResult result = engine.step();
    EXPECT_FALSE(result.skipped());
    run.norm = result.clip().norm_before;
  }
  EXPECT_EQ(engine.plan().accumulation_dtype, sums);
  if (wire) {
    EXPECT_EQ(engine.plan().communication_dtype, *wire);
  }
  EXPECT_EQ(engine.plan().state.gradient_bytes, sums == zero::Dtype::f32 ? 4 : 2);
  run.values = values_of(engine);
  return run;
}

TEST(GradientTypes, EveryCombinationTrainsAtEveryStage) {
  for (const at::ScalarType dtype : {torch::kBFloat16, torch::kHalf, torch::kFloat})
    run_ranks(2, [dtype](const zero::Mesh& mesh) {
      const GradientRun exact = train_with(mesh, 0, dtype, zero::Dtype::f32, zero::Dtype::f32);
      for (const auto wire : {std::optional<zero::Dtype>(), std::optional(zero::Dtype::f32),
                              std::optional(zero::Dtype::bf16), std::optional(zero::Dtype::f16)})
        for (const zero::Dtype sums : {zero::Dtype::f32, zero::Dtype::bf16, zero::Dtype::f16}) {
          std::map<int, GradientRun> by_stage;
          const std::string what = std::string(c10::toString(dtype)) + ", wire " +
                                   (wire ? std::string(to_string(*wire)) : "unset") + ", sums " +
                                   std::string(to_string(sums));
          std::optional<zero::DtypeOption> option;
          if (wire) option = *wire;
          for (const int stage : {0, 1, 2, 3}) by_stage[stage] = train_with(mesh, stage, dtype, option, sums);
          expect_same(by_stage[0].values, by_stage[1].values, what + ", stages 0 and 1");
          expect_same(by_stage[2].values, by_stage[3].values, what + ", stages 2 and 3");
          const bool narrow = sums != zero::Dtype::f32 || (wire && *wire != zero::Dtype::f32);
          for (const auto& [stage, run] : by_stage) {
            EXPECT_NEAR(run.norm, exact.norm, (narrow ? 2e-2 : 2e-3) * exact.norm) << what << ", " << stage;
            for (size_t i = 0; i < run.losses.size(); ++i)
              EXPECT_NEAR(run.losses[i], exact.losses[i], 3e-2) << what << ", " << stage;
          }
          if (sums == zero::Dtype::f32 && wire == zero::Dtype::f32) {
            expect_same(by_stage[0].values, exact.values, what + ", again");
          }
        }
    });
}

}  // namespace
