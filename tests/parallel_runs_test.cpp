// Runs of a configuration with tensor- and pipeline-parallel ranks at once: the course of one rank, resumed
// on any other mesh, read by any ranks.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_run.h"
#include "zero/consolidate.h"
#include "zero/evaluate.h"
#include "zero/from_config.h"
#include "zero/generate.h"
#include "zero/inference.h"
#include "zero/load_model.h"
#include "zero/train.h"

namespace zero {
namespace {

using testing::losses_of;
using testing::run_ranks;
using testing::SmallRun;

using Settings = std::vector<std::string>;

/// So many ranks along each axis.
Settings mesh_settings(int tensor, int pipeline, const std::string& schedule, bool sequence = false) {
  Settings settings{"parallel.tensor=" + std::to_string(tensor),
                    "parallel.pipeline=" + std::to_string(pipeline), "parallel.schedule=" + schedule};
  if (sequence) settings.push_back("parallel.sequence=true");
  return settings;
}

Settings with(Settings first, const Settings& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const Settings kRun{"model.layers=3", "gradient_accumulation_steps=2", "gradient_clipping=0.5"};

void train_on_mesh(int ranks, const Config& config, const TrainOptions& options = {}) {
  testing::RankOptions rank_options;
  rank_options.mesh.axes = mesh_options_of(config).axes;
  run_ranks(
      ranks, [&](const Mesh& mesh) { train(config, mesh, options); }, rank_options);
}

// With dropout and a tied head.
TEST(ParallelRuns, HaveTheCourseOfOneRank) {
  const SmallRun small;
  train_on_mesh(1, small.config(1, kRun, "one"));
  const std::vector<double> expected = losses_of(small.path() / "one");
  ASSERT_EQ(expected.size(), 6);
  struct Mesh {
    std::string name;
    Settings settings;
  };
  for (const auto& [name, settings] :
       {Mesh{"cut", mesh_settings(2, 2, "1f1b")}, Mesh{"sequence", mesh_settings(2, 2, "zb-v", true)},
        Mesh{"loop", mesh_settings(2, 2, "interleaved", true)}}) {
    train_on_mesh(4, small.config(4, with(kRun, settings), name));
    const std::vector<double> losses = losses_of(small.path() / name);
    ASSERT_EQ(losses.size(), expected.size()) << name;
    for (size_t step = 0; step < losses.size(); ++step)
      EXPECT_NEAR(losses[step], expected[step], 2e-4) << name << " step " << step;
    const double evaluated = testing::metrics_of(small.path() / name).back()["eval_loss"];
    EXPECT_NEAR(evaluated, testing::metrics_of(small.path() / "one").back()["eval_loss"].get<double>(), 2e-4);
  }
}

TEST(ParallelRuns, TakeAdaptersAndScaledLosses) {
  const SmallRun small;
  const std::map<std::string, Settings> kinds{
      {"adapters",
       {"lora.rank=2", R"(lora.targets=["*.c_attn","*.c_proj"])", "checkpoint.trainable_only=true"}},
      {"fp16", {R"(fp16={"enabled":true,"loss_scale":128})"}},
      {"overflow", {R"(fp16={"enabled":true,"initial_scale_power":30,"hysteresis":1})"}}};
  for (const auto& [kind, settings] : kinds) {
    const Settings run = with(kRun, settings);
    train_on_mesh(1, small.config(1, run, kind + " alone"));
    train_on_mesh(4, small.config(4, with(run, mesh_settings(2, 2, "zb-h1", true)), kind));
    const auto lines = testing::metrics_of(small.path() / kind),
               expected = testing::metrics_of(small.path() / (kind + " alone"));
    ASSERT_EQ(lines.size(), expected.size()) << kind;
    for (size_t i = 0; i < lines.size(); ++i) {
      if (!lines[i].contains("loss")) continue;
      const double near = kind == "adapters" ? 2e-4 : 2e-2;
      EXPECT_NEAR(lines[i]["loss"].get<double>(), expected[i]["loss"].get<double>(), near)
          << kind << " " << i;
      EXPECT_EQ(lines[i].value("loss_scale", 1.0), expected[i].value("loss_scale", 1.0)) << kind << " " << i;
      // Every scale that six steps come to is too large: nothing changes on any rank.
      EXPECT_EQ(lines[i].value("skipped", false), kind == "overflow") << kind << " " << i;
    }
    EXPECT_EQ(std::filesystem::exists(small.path() / kind / "adapter/adapter_model.safetensors"),
              kind == "adapters");
  }
}

// Blocks that are repeated in backward, along both axes: what they send comes again in one order.
TEST(ParallelRuns, RecomputationHasTheBitsOfARunWithoutIt) {
  const SmallRun small;
  struct Way {
    std::string name, schedule;
    Settings settings;
  };
  for (const int stage : {1, 3})
    for (const bool sequence : {false, true}) {
      const auto run = [&](const Way& way) {
        const Settings zero{"zero_optimization.stage=" + std::to_string(stage)};
        const Settings mesh = mesh_settings(2, 2, way.schedule, sequence);
        train_on_mesh(4, small.config(4, with(with(with(kRun, zero), mesh), way.settings), way.name));
        return testing::course_of(small.path() / way.name);
      };
      const std::string kind = std::to_string(stage) + (sequence ? "s" : "");
      const std::string all = "activation_checkpointing.recompute=all";
      // Norms begin with each rank's stages, which another schedule may give to other ranks.
      for (const Way& way :
           {Way{"all", "1f1b", {all}}, Way{"second", "zb-h1", {"activation_checkpointing.recompute=2"}},
            Way{"parts", "interleaved", {all, "activation_checkpointing.partition_activations=true"}}}) {
        const auto expected = run({"kept " + way.schedule + kind, way.schedule, {}});
        ASSERT_GE(expected.size(), 6);
        EXPECT_EQ(run({way.name + kind, way.schedule, way.settings}), expected) << way.name << kind;
      }
    }
}

// Casts by parameter and by operator, above what ranks cut and send.
TEST(ParallelRuns, CastAsOneRankDoes) {
  const SmallRun small;
  const std::map<std::string, Settings> kinds{
      {"some fp32", {R"(bf16={"enabled":true})", R"(precision.fp32=["*ln_*","wte.*"])"}},
      {"autocast", {R"(torch_autocast={"enabled":true})"}}};
  for (const auto& [kind, settings] : kinds) {
    const Settings run = with(kRun, settings);
    train_on_mesh(1, small.config(1, run, kind + " alone"));
    const std::vector<double> expected = losses_of(small.path() / (kind + " alone"));
    const std::map<std::string, std::pair<int, Settings>> meshes{
        {"tensor", {2, mesh_settings(2, 1, "1f1b")}},
        {"pipeline", {2, mesh_settings(1, 2, "zb-h1")}},
        {"both, recomputed",
         {4, with(mesh_settings(2, 2, "1f1b", true), {"activation_checkpointing.recompute=all"})}}};
    for (const auto& [mesh, how] : meshes) {
      const std::string name = kind + " " + mesh;
      train_on_mesh(how.first, small.config(how.first, with(run, how.second), name));
      const std::vector<double> losses = losses_of(small.path() / name);
      ASSERT_EQ(losses.size(), expected.size()) << name;
      for (size_t step = 0; step < losses.size(); ++step)
        EXPECT_NEAR(losses[step], expected[step], 1e-2) << name << " step " << step;
      if (mesh == "pipeline") {
        EXPECT_EQ(losses, expected) << name;
      }
    }
  }
}

TEST(ParallelRuns, GoOnOnAnyOtherMesh) {
  const SmallRun small;
  const Settings saves = with(kRun, {"checkpoint.interval_steps=1", "checkpoint.keep_last=0"});
  train_on_mesh(1, small.config(1, saves, "alone"));
  struct Part {
    int ranks, last_step;
    Settings settings;
  };
  for (const Part& part :
       {Part{4, 2, with(mesh_settings(2, 2, "zb-h1", true), {"zero_optimization.stage=1"})}, Part{1, 3, {}},
        Part{4, 5, with(mesh_settings(1, 4, "1f1b"), {"zero_optimization.stage=2"})},
        Part{4, 6, mesh_settings(2, 2, "interleaved")}}) {
    TrainOptions options{.resume = "auto"};
    options.pause_after = part.last_step;
    train_on_mesh(part.ranks, small.config(part.ranks, with(saves, part.settings), "parts"), options);
  }
  const std::vector<double> losses = losses_of(small.path() / "parts"),
                            expected = losses_of(small.path() / "alone");
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t step = 0; step < losses.size(); ++step)
    EXPECT_NEAR(losses[step], expected[step], 2e-4) << "step " << step;
}

TEST(ParallelRuns, WhatTheyLeaveIsUsedByAnyRanks) {
  const SmallRun small;
  train_on_mesh(8,
                small.config(8, with(kRun, with(mesh_settings(2, 2, "zb-v", true), {"train_batch_size=8"}))));
  const SavedModel saved = find_model(small.path() / "run");
  const std::vector<int64_t> prompt{3, 6, 9};
  const GenerateOptions greedy{.max_new_tokens = 4, .temperature = 0};
  const TokenFile file = TokenFile::open(small.path() / "eval.tokens");
  const EvaluateOptions options{.sequence_length = 8, .batch_size = 3, .batches = 0};
  std::vector<int64_t> expected;
  double loss = 0;
  {
    Inference alone(saved, Mesh::join({}));
    expected = alone.generate(prompt, greedy);
    loss = alone.evaluate(file, options).loss;
  }
  testing::RankOptions rank_options;
  rank_options.mesh.axes = mesh_options_of(saved.config).axes;
  run_ranks(
      4,
      [&](const Mesh& mesh) {
        Inference cut(saved, mesh);
        EXPECT_EQ(cut.generate(prompt, greedy), expected);
        EXPECT_NEAR(cut.evaluate(file, options).loss, loss, 1e-5);
      },
      rank_options);
  // One directory of the parts of eight ranks.
  const std::filesystem::path out = small.path() / "model";
  consolidate(saved.checkpoint, out);
  Inference consolidated(find_model(out), Mesh::join({}));
  EXPECT_EQ(consolidated.generate(prompt, greedy), expected);
}

TEST(ParallelRuns, RefuseMeshesThatRanksDoNotMake) {
  const SmallRun small;
  EXPECT_ERROR(small.config(4, mesh_settings(4, 2, "1f1b")), Config,
               "parallel.tensor: expected a divisor of the 2 ranks of each place along the pipeline, got 4");
}

}  // namespace
}  // namespace zero
