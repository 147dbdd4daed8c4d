// Runs of a configuration through a pipeline: the course and the checkpoint of a run without one, to the bit,
// dropout and tied head included; resumed on any other mesh.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_run.h"
#include "zero/checkpoint.h"
#include "zero/from_config.h"
#include "zero/inference.h"
#include "zero/load_model.h"
#include "zero/train.h"

namespace zero {
namespace {

using testing::metrics_of;
using testing::run_ranks;
using testing::SmallRun;

using Overrides = std::vector<std::string>;

Overrides joined(Overrides first, const Overrides& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

const Overrides kBase{"model.layers=4", "gradient_accumulation_steps=3", "gradient_clipping=0.5"};

Overrides through(int ranks, const std::string& schedule) {
  return {"parallel.pipeline=" + std::to_string(ranks), "parallel.schedule=" + schedule};
}

void train_run(int ranks, const Config& config, const TrainOptions& options = {}) {
  testing::RankOptions rank_options;
  rank_options.mesh.axes = mesh_options_of(config).axes;
  run_ranks(
      ranks, [&](const Mesh& mesh) { train(config, mesh, options); }, rank_options);
}

/// Of the newest checkpoint, but for what is a rank's own.
std::map<std::string, std::string> values_of_run(const std::filesystem::path& run) {
  auto values = testing::newest_values(run);
  std::erase_if(values, [](const auto& value) { return value.first.starts_with("rank/"); });
  return values;
}

/// What the run wrote of its adapters; "" where it has none.
std::string adapters_of(const std::filesystem::path& run) {
  std::ifstream file(run / "adapter/adapter_model.safetensors", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Losses, rates and evaluations to the bit, norms to the sum's order in fp64, and the checkpoint.
void expect_same_run(const std::filesystem::path& found, const std::filesystem::path& expected) {
  const auto lines = metrics_of(found), wanted = metrics_of(expected);
  ASSERT_EQ(lines.size(), wanted.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const char* key : {"loss", "lr", "tokens", "skipped", "loss_scale", "eval_loss"}) {
      ASSERT_EQ(lines[i].contains(key), wanted[i].contains(key)) << key;
      if (lines[i].contains(key)) {
        EXPECT_EQ(lines[i][key], wanted[i][key]) << key << " of line " << i;
      }
    }
    ASSERT_EQ(lines[i].value("skipped", false), wanted[i].value("skipped", false));
    if (lines[i].contains("grad_norm") && !lines[i].value("skipped", false)) {
      const double norm = wanted[i]["grad_norm"];
      EXPECT_NEAR(lines[i]["grad_norm"].get<double>(), norm, 1e-14 * norm);
    }
  }
  const auto values = values_of_run(found), wanted_values = values_of_run(expected);
  ASSERT_EQ(values.size(), wanted_values.size());
  for (const auto& [name, bytes] : wanted_values) EXPECT_TRUE(values.at(name) == bytes) << name;
  EXPECT_EQ(adapters_of(found), adapters_of(expected));
}

struct Case {
  std::string name;
  int ranks, dp;
  std::string schedule;
  Overrides overrides = {};
  int stage = 3;
};

class PipelineRuns : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Train, PipelineRuns,
    ::testing::Values(
        Case{"gpipe", 2, 1, "gpipe"}, Case{"one_f_one_b", 4, 1, "1f1b"},
        Case{"interleaved", 2, 1, "interleaved", {}, 1},
        Case{"zb_h1_bf16", 4, 1, "zb-h1", {"bf16.enabled=true"}},
        Case{"zb_v_bf16", 2, 1, "zb-v", {"bf16.enabled=true"}, 2}, Case{"of_two_by_two", 2, 2, "1f1b", {}, 0},
        Case{"of_two_by_two_recomputed", 2, 2, "zb-h1", {"activation_checkpointing.recompute=2"}},
        // The first scales are too large, for some stages' gradients at first.
        Case{"fp16", 2, 1, "zb-h1", {R"(fp16={"enabled":true,"initial_scale_power":20,"hysteresis":1})"}, 1},
        Case{"of_two_by_two_fp16",
             2,
             2,
             "zb-v",
             {R"(fp16={"enabled":true,"initial_scale_power":20,"hysteresis":1})"}},
        Case{"adapters", 2, 1, "zb-h1", {"lora.rank=2", R"(lora.targets=["*.c_attn","*.c_proj"])"}},
        Case{"adapters_alone_saved",
             2,
             2,
             "interleaved",
             {"lora.rank=2", R"(lora.targets=["h.1.*","h.2.*"])", "checkpoint.trainable_only=true"}},
        Case{"frozen_stage", 4, 1, "zb-h1", {R"(frozen=["wte.*","wpe.*","h.0.*","h.2.*"])"}},
        Case{"frozen_head", 2, 1, "1f1b", {R"(trainable=["h.1.*"])", "checkpoint.trainable_only=true"}, 2},
        Case{"of_two_by_two_bf16", 2, 2, "interleaved", {"bf16.enabled=true"}},
        Case{
            "llama_untied",
            2,
            1,
            "zb-h2",
            {R"(model={"type":"llama","vocab_size":64,"context_length":8,"layers":4,"width":16,"heads":2})"}},
        Case{
            "neox_tied",
            2,
            1,
            "zb-v",
            {R"(model={"type":"gpt_neox","vocab_size":64,"context_length":8,"layers":4,"width":16,"heads":2,"tied_head":true})"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(PipelineRuns, AreThoseWithoutAPipeline) {
  const Case& one = GetParam();
  const SmallRun small;
  const auto at_stage = [&](int stage) {
    return joined(joined(kBase, one.overrides), {"zero_optimization.stage=" + std::to_string(stage)});
  };
  // Summed on each rank before they are reduced, as in a pipeline.
  const Overrides alone = at_stage(1);
  train_run(one.dp, small.config(one.dp, alone, "alone"));
  train_run(one.ranks * one.dp,
            small.config(one.ranks * one.dp, joined(at_stage(one.stage), through(one.ranks, one.schedule)),
                         "piped"));
  expect_same_run(small.path() / "piped", small.path() / "alone");
}

TEST(PipelineRuns, PutActivationsAway) {
  const SmallRun small;
  const testing::DiskDirectory disk;
  const Overrides away{"activation_checkpointing.offload=disk",
                       "activation_checkpointing.offload_path=" + disk.path().string()};
  // Wide enough for its tensors to be worth moving.
  const Overrides wide = joined(kBase, {"model.width=64", "train_batch_size=48", "run.steps=3"});
  train_run(1, small.config(1, joined(wide, {"zero_optimization.stage=1"}), "alone"));
  const std::map<std::string, Overrides> ways{{"away", {}},
                                              {"recomputed", {"activation_checkpointing.recompute=2"}}};
  for (const auto& [name, recomputed] : ways) {
    train_run(2, small.config(2, joined(joined(wide, through(2, "zb-v")), joined(away, recomputed)), name));
    expect_same_run(small.path() / name, small.path() / "alone");
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_GT(metrics_of(small.path() / name).front()["disk"]["written_bytes"].get<int64_t>(), 0) << name;
  }
}

// Each rank chooses for its own blocks, from what it has measured in the first step; one has none.
TEST(PipelineRuns, ChooseWhatIsRecomputed) {
  const SmallRun small;
  train_run(1, small.config(1, joined(kBase, {"zero_optimization.stage=1"}), "alone"));
  const Overrides chosen{"activation_checkpointing.recompute=auto", "activation_checkpointing.memory=110KiB"};
  train_run(2, small.config(2, joined(joined(kBase, through(2, "interleaved")), chosen), "two"));
  train_run(4, small.config(4,
                            joined(joined(kBase, through(4, "zb-h1")),
                                   joined(chosen, {"parallel.stage_blocks=[0,2,1,1]"})),
                            "four"));
  expect_same_run(small.path() / "two", small.path() / "alone");
  expect_same_run(small.path() / "four", small.path() / "alone");
  EXPECT_ERROR(small.config(2, joined(through(2, "1f1b"), {chosen[0]})), Config,
               "activation_checkpointing.memory");
}

TEST(PipelineRuns, GoOnOnAnyOtherMesh) {
  const SmallRun small;
  const Overrides saves = joined(kBase, {"checkpoint.interval_steps=2", "checkpoint.keep_last=0"});
  train_run(1, small.config(1, saves, "alone"));
  struct Part {
    int ranks;
    Overrides overrides;
    int steps;
  };
  // Two steps each.
  const Part parts[] = {{2, through(2, "zb-v"), 2}, {1, {}, 4}, {4, through(4, "1f1b"), 6}};
  for (const Part& part : parts) {
    const Config config = small.config(part.ranks, joined(saves, part.overrides), "parts");
    int left = 2;
    TrainOptions options{.resume = "auto"};
    if (part.steps < 6) options.stop_signal = [&] { return --left <= 0 ? 15 : 0; };
    train_run(part.ranks, config, options);
  }
  EXPECT_EQ(values_of_run(small.path() / "parts"), values_of_run(small.path() / "alone"));
}

TEST(PipelineRuns, AreReadAsAnyOther) {
  const SmallRun small;
  train_run(2, small.config(2, joined(kBase, through(2, "1f1b")), "piped"));
  const SavedModel saved = find_model(small.path() / "piped");
  const double loss = metrics_of(small.path() / "piped").back()["eval_loss"];
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](const Mesh& mesh) {
      Inference inference(saved, mesh);
      const TokenFile file = TokenFile::open(small.path() / "eval.tokens");
      const EvalResult found = inference.evaluate(file, {.sequence_length = 8, .batch_size = 4});
      EXPECT_TRUE(std::isfinite(found.loss) && std::abs(found.loss - loss) < 0.2)
          << found.loss << " " << loss;
      const std::vector<int64_t> prompt{1, 4, 7};
      EXPECT_EQ(inference.generate(prompt, {.max_new_tokens = 3}).size(), 3);
    });
}

TEST(PipelineRuns, RefuseWhatTheyCannotDo) {
  const SmallRun small;
  EXPECT_ERROR(small.config(3, through(2, "1f1b")), Config,
               "parallel.pipeline: expected a divisor of the 3 ranks");
  EXPECT_ERROR(
      small.config(2, joined(through(2, "1f1b"), {"offload.optimizer=auto", "offload.memory=10MiB"})),
      Unsupported, "offload: not with parallel.pipeline 2 yet");
  const Config config =
      small.config(2, joined(through(2, "1f1b"), {"parallel.stage_blocks=[2,1]"}), "uneven");
  testing::RankOptions rank_options;
  rank_options.mesh.axes = mesh_options_of(config).axes;
  for (const auto& result : testing::collect_ranks(
           2, [&](const Mesh& mesh) { train(config, mesh, {}); }, rank_options)) {
    EXPECT_NE(result.error.find("parallel.stage_blocks"), std::string::npos) << result.error;
  }
}

}  // namespace
}  // namespace zero
