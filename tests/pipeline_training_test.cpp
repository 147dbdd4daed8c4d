// Training through a pipeline: the bits of one process that accumulates, under every schedule, number of
// stages and of micro-batches, ZeRO stage and type; tied parameters included.
#include <gtest/gtest.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>

#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/named_tensors.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"
#include "zero/engine.h"
#include "zero/lazy.h"
#include "zero/mesh.h"
#include "zero/pipeline.h"

namespace {

using namespace zero::testing;
using zero::Mesh;
using zero::Pipeline;
using zero::PipelineStage;
using zero::StageTensors;
using Values = std::map<std::string, std::string>;

constexpr int kBlocks = 5, kSteps = 3;

/// Everything that makes a run.
struct Run {
  std::string schedule;
  int ranks, micro_batches;
  int dp = 1, stage = 0;
  std::vector<int> blocks = {};  // of each stage; empty: spread evenly
  bool bf16 = false, lazy = true;
  double clipping = 0.3;
};

std::string name_of(const Run& run) {
  return run.schedule + ", " + std::to_string(run.ranks) + " x " + std::to_string(run.dp) + " ranks, " +
         std::to_string(run.micro_batches) + " micro-batches, stage " + std::to_string(run.stage) +
         (run.bf16 ? ", bf16" : "");
}

int chunks_of(const Run& run) { return run.schedule == "interleaved" || run.schedule == "zb-v" ? 2 : 1; }

/// Odd sizes, another number of samples in every micro-batch.
Batch batch_for(int step, int micro_batch, int dp_rank) {
  return batch_of(100 * step + 10 * micro_batch + dp_rank, 1 + (step + micro_batch) % 3);
}

at::Tensor loss_of(const at::Tensor& logits, const at::Tensor& targets) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, -2).to(torch::kFloat), targets.flatten());
}

/// SmallNet in so many stages: its embedding is the head of the last one too.
std::vector<PipelineStage> stages_of_net(SmallNet net, std::vector<int> blocks) {
  std::vector<PipelineStage> stages(blocks.size());
  int begin = 0;
  for (size_t s = 0; s < blocks.size(); ++s) {
    const int end = begin + blocks[s];
    const bool is_first = s == 0, is_last = s + 1 == blocks.size();
    if (is_first || is_last) stages[s].parameters.push_back("embedding.*");
    for (int i = begin; i < end; ++i) stages[s].parameters.push_back("layers." + std::to_string(i) + ".*");
    if (is_last) stages[s].parameters.push_back("norm.*");
    stages[s].forward = [=](const StageTensors& in, int) mutable {
      at::Tensor x = is_first ? net->embedding(in.at(0)) : in.at(0);
      for (int i = begin; i < end; ++i) x = net->layers[i]->as<BlockImpl>()->forward(x);
      if (is_last) x = torch::nn::functional::linear(net->norm(x), net->embedding->weight);
      return StageTensors{x};
    };
    begin = end;
  }
  return stages;
}

std::vector<int> spread(int stages) {
  std::vector<int> blocks(static_cast<size_t>(stages));
  for (int i = 0; i < kBlocks; ++i) ++blocks[static_cast<size_t>(i * stages / kBlocks)];
  return blocks;
}

zero::EngineOptions options_of(const Run& run) {
  zero::EngineOptions options{.stage = run.stage, .gradient_clipping = run.clipping};
  options.accumulation_steps = run.micro_batches;
  options.reduce_once = true;
  if (run.bf16) options.dtype = torch::kBFloat16;
  return options;
}

SmallNet net_of(bool lazy) {
  torch::manual_seed(11);
  const auto make = [] { return SmallNet(29, 10, kBlocks); };
  return lazy ? zero::lazily(make) : make();
}

void hand_back_course(int step, const at::Tensor& losses, const zero::StepResult& result) {
  const std::string name = "step " + std::to_string(step);
  hand_back_named(name + " losses", losses);
  hand_back_named(name + " norm", torch::tensor({result.clip().norm_before}, torch::kDouble));
}

/// Without a pipeline, on run.dp ranks.
Values alone(const Run& run) {
  return named_of(run_ranks(run.dp, [&](const Mesh& mesh) {
    SmallNet net = net_of(run.lazy);
    zero::Engine engine(*net, zero::AdamW{.lr = 0.02}, options_of(run), mesh);
    for (int step = 0; step < kSteps; ++step) {
      at::Tensor losses = torch::zeros({run.micro_batches}, torch::kDouble);
      for (int i = 0; i < run.micro_batches; ++i) {
        const Batch batch = batch_for(step, i, mesh.rank());
        const at::Tensor loss =
            engine.forward([&] { return loss_of(net->forward(batch.tokens), batch.targets); });
        engine.backward(loss);
        losses[i] = loss.detach().to(torch::kDouble);
      }
      const zero::StepResult result = engine.step();
      if (mesh.rank() == 0) hand_back_course(step, losses, result);
    }
    for (const std::string& name : engine.parameter_names())
      for (const std::string kind : {"", "exp_avg", "exp_avg_sq"})
        hand_back_named(name + " " + kind,
                        kind.empty() ? engine.full_parameter(name) : engine.full_optimizer_state(name, kind));
  }));
}

RankOptions axes_of(const Run& run) {
  RankOptions options;
  options.mesh.axes = {{"pp", run.ranks}, {"dp", run.dp}, {"tp", 1}};
  return options;
}

void train_step(Pipeline& pipeline, const Mesh& mesh, int step) {
  const int place = mesh.group("dp").rank();
  const at::Tensor losses = pipeline.train(
      [&](int i) { return StageTensors{batch_for(step, i, place).tokens}; },
      [&](const StageTensors& out, int i) { return loss_of(out.at(0), batch_for(step, i, place).targets); });
  const zero::StepResult result = pipeline.step();
  if (place == 0) hand_back_course(step, losses, result);
}

std::unique_ptr<Pipeline> pipeline_of(const Run& run, SmallNet& net, const Mesh& mesh) {
  const std::vector<int> blocks = run.blocks.empty() ? spread(run.ranks * chunks_of(run)) : run.blocks;
  return std::make_unique<Pipeline>(
      *net, stages_of_net(net, blocks), zero::AdamW{.lr = 0.02}, options_of(run),
      zero::PipelineOptions{.micro_batches = run.micro_batches, .schedule = run.schedule}, mesh);
}

Values piped(const Run& run) {
  return named_of(run_ranks(
      run.ranks * run.dp,
      [&](const Mesh& mesh) {
        SmallNet net = net_of(run.lazy);
        const auto pipeline = pipeline_of(run, net, mesh);
        for (int step = 0; step < kSteps; ++step) train_step(*pipeline, mesh, step);
        zero::Engine& engine = pipeline->engine();
        for (const std::string& name : engine.parameter_names())
          for (const std::string kind : {"", "exp_avg", "exp_avg_sq"})
            hand_back_named(name + " " + kind, kind.empty() ? engine.full_parameter(name)
                                                            : engine.full_optimizer_state(name, kind));
      },
      axes_of(run)));
}

void expect_equal_to_serial(const Run& run) {
  Values found = piped(run), expected = alone(run);
  // Squares are added by rank, in fp64.
  for (int step = 0; step < kSteps; ++step) {
    const std::string name = "step " + std::to_string(step) + " norm";
    const auto norm = [&](Values& values) {
      return tensor_from_bytes(values.extract(name).mapped(), at::kDouble).item<double>();
    };
    const double norm_alone = norm(expected);
    EXPECT_GT(norm_alone, run.clipping);
    EXPECT_NEAR(norm(found), norm_alone, 1e-14 * norm_alone) << name << ", " << name_of(run);
  }
  EXPECT_EQ(differences(found, expected), "") << name_of(run);
}

TEST(PipelineTraining, HasTheBitsOfOneProcessUnderEverySchedule) {
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "search"})
    for (const int ranks : {1, 2, 4}) expect_equal_to_serial({schedule, ranks, 6});
}

TEST(PipelineTraining, TakesAnyNumberOfMicroBatches) {
  for (const int micro_batches : {1, 2, 3, 5})
    for (const std::string schedule : {"1f1b", "interleaved", "zb-v"})
      expect_equal_to_serial({schedule, 3, micro_batches});
}

TEST(PipelineTraining, HasTheBitsOfDataParallelRanksAtEveryStage) {
  for (const int stage : {0, 1, 2, 3}) expect_equal_to_serial({stage % 2 ? "1f1b" : "zb-h1", 2, 3, 2, stage});
  expect_equal_to_serial({"zb-v", 2, 1, 2, 3});
  expect_equal_to_serial({"interleaved", 2, 4, 2, 2});
}

TEST(PipelineTraining, HasTheBitsOfOneProcessInBf16) {
  for (const std::string schedule : {"gpipe", "interleaved", "zb-h1", "zb-v"})
    expect_equal_to_serial({.schedule = schedule, .ranks = 2, .micro_batches = 3, .stage = 1, .bf16 = true});
  expect_equal_to_serial(
      {.schedule = "1f1b", .ranks = 2, .micro_batches = 4, .dp = 2, .stage = 3, .bf16 = true});
}

TEST(PipelineTraining, TakesUnevenStagesAndEagerModules) {
  expect_equal_to_serial(
      {.schedule = "1f1b", .ranks = 3, .micro_batches = 4, .blocks = {0, 5, 0}, .lazy = false});
  expect_equal_to_serial(
      {.schedule = "zb-h2", .ranks = 2, .micro_batches = 4, .blocks = {4, 1}, .lazy = false});
}

}  // namespace
