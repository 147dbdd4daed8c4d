// Pipelines under trouble: delays change nothing, errors on one rank end all, a rank that dies is named with
// its place.
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "mesh/rank_places.h"
#include "support/expect_error.h"
#include "support/named_tensors.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/pipeline.h"

namespace {

using namespace zero::testing;
using zero::Axis;
using zero::Mesh;
using zero::Pipeline;
using zero::StageTensors;
using zero::detail::with_places;

TEST(RankPlaces, StandBehindEachRank) {
  const std::vector<Axis> axes{{"pp", 2}, {"dp", 3}, {"tp", 2}};
  EXPECT_EQ(with_places(axes, "waiting for rank 7; ranks differ"),
            "waiting for rank 7 (pp 1, dp 0, tp 1); ranks differ");
  EXPECT_EQ(with_places(axes, "rank 0 and rank 11"),
            "rank 0 (pp 0, dp 0, tp 0) and rank 11 (pp 1, dp 2, tp 1)");
  EXPECT_EQ(with_places(axes, "rank 12, rank x"), "rank 12, rank x");
  EXPECT_EQ(with_places(std::vector<Axis>{{"pp", 4}, {"dp", 1}}, "rank 3"), "rank 3");
  EXPECT_EQ(with_places(std::vector<Axis>{{"pp", 4}, {"dp", 2}, {"tp", 1}}, "rank 3"), "rank 3 (pp 1, dp 1)");
}

torch::nn::Sequential net_of() {
  torch::manual_seed(3);
  return torch::nn::Sequential(torch::nn::Linear(5, 8), Block(8), Block(8), torch::nn::Linear(8, 2));
}

RankOptions along(int pipeline, int dp) {
  RankOptions options;
  options.mesh.axes = {{"pp", pipeline}, {"dp", dp}};
  return options;
}

/// Two steps of four micro-batches; `trouble` is called in every stage's forward.
void train(const Mesh& mesh, const std::string& schedule, int stages,
           const std::function<void(int)>& trouble) {
  auto net = net_of();
  const std::vector<int64_t> counts =
      stages == 2 ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{1, 1, 1, 1};
  auto parts = zero::stages_of(*net, counts);
  for (zero::PipelineStage& part : parts)
    part.forward = [forward = part.forward, trouble](const StageTensors& in, int index) {
      trouble(index);
      return forward(in, index);
    };
  Pipeline pipeline(*net, parts, zero::AdamW{.lr = 0.01}, {.stage = 3},
                    {.micro_batches = 4, .schedule = schedule}, mesh);
  const auto input = [](int i) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(i));
    return StageTensors{torch::rand({3, 5}, generator)};
  };
  for (int step = 0; step < 2; ++step) {
    const at::Tensor losses =
        pipeline.train(input, [](const StageTensors& out, int) { return out.at(0).square().mean(); });
    pipeline.step();
    hand_back_named("losses " + std::to_string(step), losses);
  }
  for (const std::string& name : pipeline.engine().parameter_names())
    hand_back_named(name, pipeline.engine().full_parameter(name));
}

TEST(PipelineFaults, DelaysChangeNothing) {
  for (const std::string schedule : {"1f1b", "zb-v"}) {
    const int stages = schedule == "zb-v" ? 4 : 2;
    const auto run = [&](bool delayed) {
      return named_of(run_ranks(
          4,
          [&](const Mesh& mesh) {
            std::mt19937 random(static_cast<unsigned>(mesh.rank()));
            train(mesh, schedule, stages, [&](int) {
              if (delayed) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 8));
            });
          },
          along(2, 2)));
    };
    EXPECT_EQ(differences(run(true), run(false)), "") << schedule;
  }
}

TEST(PipelineFaults, ARankThatDiesIsNamedWithItsPlace) {
  RankOptions options = along(2, 2);
  const auto results = collect_ranks(
      4,
      [](const Mesh& mesh) {
        train(mesh, "1f1b", 2, [&](int index) {
          if (mesh.rank() == 3 && index == 2) _exit(9);
        });
      },
      options);
  EXPECT_EQ(results[3].exit, 9);
  // Its neighbour along the pipeline waits for it.
  EXPECT_NE(results[1].error.find("rank 3 (pp 1, dp 1)"), std::string::npos) << results[1].error;
  for (const int rank : {0, 1, 2}) EXPECT_EQ(results[static_cast<size_t>(rank)].exit, 1) << rank;
}

TEST(PipelineFaults, AnErrorInAStageEndsAll) {
  RankOptions options = along(2, 1);
  const auto results = collect_ranks(
      2,
      [](const Mesh& mesh) {
        train(mesh, "zb-h1", 2, [&](int index) {
          if (mesh.rank() == 1 && index == 1) throw std::runtime_error("the model is wrong");
        });
      },
      options);
  EXPECT_NE(results[1].error.find("the model is wrong"), std::string::npos) << results[1].error;
  EXPECT_NE(results[0].error.find("the model is wrong"), std::string::npos) << results[0].error;
}

TEST(PipelineFaults, StagesThatDoNotFitAreRefused) {
  run_ranks(
      2,
      [](const Mesh& mesh) {
        auto net = net_of();
        const auto make = [&](std::vector<zero::PipelineStage> stages, const std::string& schedule) {
          Pipeline pipeline(*net, std::move(stages), zero::SGD{}, {}, {.schedule = schedule}, mesh);
        };
        const auto two = [&] { return zero::stages_of(*net, {2, 2}); };
        EXPECT_ERROR(zero::stages_of(*net, {2, 1}), Config, "add up to 3 of the module's 4");
        EXPECT_ERROR(make(two(), "interleaved"), Config, "2 stages, expected 4: 2 for each of 2 ranks");
        EXPECT_ERROR(make(two(), "1f1c"), Config, "there is no \"1f1c\"");
        auto unknown = two();
        unknown[1].parameters.push_back("head.*");
        EXPECT_ERROR(make(unknown, "1f1b"), Config, "\"head.*\" matches no parameter");
        auto missing = two();
        missing[1].parameters.pop_back();
        EXPECT_ERROR(make(missing, "1f1b"), Config, "3.weight: no stage of the pipeline uses it");
        auto tied = two();
        tied[1].parameters.push_back("0.*");
        torch::NoGradGuard no_grad;
        if (mesh.rank() == 1) net->named_parameters()["0.bias"].add_(1);
        EXPECT_ERROR(make(tied, "1f1b"), Config, "0.bias: stages that share it begin with other values");
      },
      along(2, 1));
}

}  // namespace
