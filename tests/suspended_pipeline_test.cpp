// Pipelines of modules that stay as they are: every stage runs the whole forward, and the course has the bits
// of one process that accumulates.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/normalization.h>

#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/named_tensors.h"
#include "support/plain_models.h"
#include "support/ranks.h"
#include "zero/engine.h"
#include "zero/lazy.h"
#include "zero/pipeline.h"

namespace {

using namespace zero::testing;
using at::Tensor;
using zero::Mesh;
using zero::Pipeline;
using zero::PipelineUnits;
using Values = std::map<std::string, std::string>;

constexpr int kSteps = 3;

/// A module and its loss of a micro-batch.
struct Model {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensor(int step, int micro_batch, int dp_rank)> loss;
};
using MakeModel = std::function<Model()>;

struct Run {
  std::string name;
  MakeModel make;
  std::string schedule;
  int ranks, micro_batches;
  int dp = 1, stage = 0;
  PipelineUnits units = {};
  bool bf16 = false, lazy = true;
};

zero::EngineOptions options_of(const Run& run) {
  zero::EngineOptions options{.stage = run.stage, .gradient_clipping = 0.3};
  options.accumulation_steps = run.micro_batches;
  options.reduce_once = true;
  if (run.bf16) options.dtype = torch::kBFloat16;
  return options;
}

Model made(const Run& run) {
  torch::manual_seed(11);
  return run.lazy ? zero::lazily([&] { return run.make(); }) : run.make();
}

void hand_back_course(int step, const Tensor& losses) {
  hand_back_named("step " + std::to_string(step) + " losses", losses);
}

void hand_back_values(zero::Engine& engine) {
  for (const std::string& name : engine.parameter_names())
    for (const std::string kind : {"", "exp_avg"})
      hand_back_named(name + " " + kind,
                      kind.empty() ? engine.full_parameter(name) : engine.full_optimizer_state(name, kind));
}

Values alone(const Run& run) {
  return named_of(run_ranks(run.dp, [&](const Mesh& mesh) {
    const Model model = made(run);
    zero::Engine engine(*model.module, zero::AdamW{.lr = 0.02}, options_of(run), mesh);
    torch::manual_seed(5 + static_cast<uint64_t>(mesh.rank()));
    for (int step = 0; step < kSteps; ++step) {
      Tensor losses = torch::zeros({run.micro_batches}, torch::kDouble);
      for (int i = 0; i < run.micro_batches; ++i) {
        const Tensor loss = engine.forward([&] { return model.loss(step, i, mesh.rank()); });
        engine.backward(loss);
        losses[i] = loss.detach().to(torch::kDouble);
      }
      engine.step();
      if (mesh.rank() == 0) hand_back_course(step, losses);
    }
    hand_back_values(engine);
  }));
}

Values piped(const Run& run) {
  RankOptions ranks;
  ranks.mesh.axes = {{"pp", run.ranks}, {"dp", run.dp}};
  return named_of(run_ranks(
      run.ranks * run.dp,
      [&](const Mesh& mesh) {
        const Model model = made(run);
        const int place = mesh.group("dp").rank();
        const auto of_step = [&](int step) {
          return [&, step](int i) { return model.loss(step, i, place); };
        };
        Pipeline pipeline(*model.module, of_step(0), run.units, zero::AdamW{.lr = 0.02}, options_of(run),
                          {.micro_batches = run.micro_batches, .schedule = run.schedule}, mesh);
        torch::manual_seed(5 + static_cast<uint64_t>(place));
        for (int step = 0; step < kSteps; ++step) {
          const Tensor losses = pipeline.train(of_step(step));
          pipeline.step();
          if (place == 0) hand_back_course(step, losses);
        }
        hand_back_values(pipeline.engine());
      },
      ranks));
}

void expect_as_alone(const Run& run) {
  Run reference = run;
  reference.stage = std::min(run.stage, 1);
  EXPECT_EQ(differences(piped(run), alone(reference)), "")
      << run.name << ", " << run.schedule << ", " << run.ranks << " x " << run.dp << " ranks, stage "
      << run.stage;
}

Tensor tokens_of(int step, int micro_batch, int dp_rank) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(
      static_cast<uint64_t>(100 * step + 10 * micro_batch + dp_rank));
  // Of another size in every micro-batch.
  const int64_t samples = 1 + (step + micro_batch) % 3, length = 4 + (2 * step + micro_batch) % 5;
  return torch::randint(0, PlainShape().vocabulary, {samples, length + 1}, generator, torch::kLong);
}

template <class Net>
MakeModel language_model(double dropout = 0) {
  return [=] {
    PlainShape shape;
    shape.dropout = dropout;
    auto net = std::make_shared<Net>(shape);
    return Model{net, [net](int step, int i, int rank) {
                   const Tensor tokens = tokens_of(step, i, rank);
                   return net->loss(tokens.narrow(1, 0, tokens.size(1) - 1),
                                    tokens.narrow(1, 1, tokens.size(1) - 1));
                 }};
  };
}

MakeModel skipping() {
  return [] {
    auto net = std::make_shared<PlainUNet>();
    return Model{net, [net](int step, int i, int rank) {
                   auto generator = at::make_generator<at::CPUGeneratorImpl>(
                       static_cast<uint64_t>(100 * step + 10 * i + rank));
                   const int64_t side = 8 + 4 * ((step + i) % 3);
                   const Tensor image = torch::rand({2, 3, side, side}, generator);
                   return torch::mse_loss(net->forward(image), image.mean(1, true));
                 }};
  };
}

TEST(SuspendedPipeline, PlainGptHasTheBitsOfOneProcess) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"})
    expect_as_alone({"gpt", language_model<PlainGpt>(), schedule, 2, 3, 1, 3});
  expect_as_alone({"gpt", language_model<PlainGpt>(), "1f1b", 4, 1});
  expect_as_alone({"gpt, eager", language_model<PlainGpt>(), "1f1b", 2, 4, 1, 2, {}, false, false});
  expect_as_alone({"gpt", language_model<PlainGpt>(), "zb-h1", 2, 2, 2, 3});
  expect_as_alone({"gpt, bf16", language_model<PlainGpt>(), "1f1b", 2, 3, 1, 1, {}, true});
}

TEST(SuspendedPipeline, DropoutDrawsWhatOneProcessDraws) {
  for (const char* schedule : {"1f1b", "interleaved", "zb-v"})
    expect_as_alone({"gpt, dropout", language_model<PlainGpt>(0.2), schedule, 2, 3, 1, 1});
  expect_as_alone({"gpt, dropout", language_model<PlainGpt>(0.2), "zb-h1", 4, 3});
}

TEST(SuspendedPipeline, PlainLlamaHasTheBitsOfOneProcess) {
  for (const char* schedule : {"1f1b", "interleaved"})
    expect_as_alone({"llama", language_model<PlainLlama>(), schedule, 2, 4, 1, 3});
  expect_as_alone({"llama", language_model<PlainLlama>(), "zb-h2", 3, 2, 1, 1});
  const PipelineUnits uneven{
      .patterns =
          {{"words.*"}, {"layers.0.*"}, {"layers.1.*"}, {"layers.2.*"}, {"layers.3.*"}, {"norm"}, {"head.*"}},
      .counts = {1, 0, 5, 1}};
  expect_as_alone({"llama, uneven", language_model<PlainLlama>(), "1f1b", 4, 3, 1, 0, uneven});
}

TEST(SuspendedPipeline, TensorsMaySkipStages) {
  for (const char* schedule : {"1f1b", "zb-h1", "interleaved"})
    expect_as_alone({"unet", skipping(), schedule, 3, 3, 1, schedule[0] == '1' ? 2 : 3});
  expect_as_alone({"unet", skipping(), "zb-v", 2, 2});
  expect_as_alone({"unet", skipping(), "1f1b", 2, 2, 2, 1});
}

}  // namespace
