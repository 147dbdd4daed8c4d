// Runs whose activations are recomputed or wait elsewhere: the same losses and checkpoints as of those that
// keep them, and figures of what was where.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "support/disk_directory.h"
#include "support/small_run.h"
#include "zero/checkpoint.h"
#include "zero/load_model.h"
#include "zero/trace.h"
#include "zero/train.h"

namespace zero {
namespace {

using testing::DiskDirectory;
using testing::newest_values;
using testing::SmallRun;
using testing::train_on;

using Overrides = std::vector<std::string>;

Overrides with(Overrides some, const Overrides& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

/// Wide enough for its tensors to be worth moving.
Overrides wide_model(int stage) {
  return {"model.width=64",
          "train_batch_size=48",
          "run.steps=3",
          "run.eval_batches=1",
          "gradient_accumulation_steps=2",
          "zero_optimization.stage=" + std::to_string(stage)};
}

Overrides activations(const std::string& key, const std::string& value) {
  return {"activation_checkpointing." + key + "=" + value};
}

TEST(TrainActivations, AreTheSameRunWhereverTheyAre) {
  const SmallRun small;
  const DiskDirectory disk;
  const Overrides on_disk =
      with(activations("offload", "disk"), activations("offload_path", disk.path().string()));
  const std::map<std::string, Overrides> ways{
      {"all", activations("recompute", "all")},
      {"second", activations("recompute", "2")},
      {"auto", with(activations("recompute", "auto"), activations("memory", "700KiB"))},
      {"free", activations("recompute", "auto")},
      {"disk", on_disk},
      {"inputs", with(on_disk, activations("recompute", "all"))},
      {"choice", with(with(activations("recompute", "auto"), activations("offload", "auto")),
                      {"activation_checkpointing.offload_path=" + disk.path().string(),
                       "activation_checkpointing.offload_buffer_size=65536",
                       "activation_checkpointing.memory=700KiB"})}};
  for (const int stage : {1, 3}) {
    train_on(2, small.config(2, wide_model(stage), "plain"), {.overwrite = true});
    for (const auto& [name, way] : ways) {
      SCOPED_TRACE(name + " at stage " + std::to_string(stage));
      const std::filesystem::path run = small.path() / name;
      train_on(2, small.config(2, with(wide_model(stage), way), name), {.overwrite = true});
      EXPECT_EQ(testing::course_of(run), testing::course_of(small.path() / "plain"));
      EXPECT_EQ(newest_values(run), newest_values(small.path() / "plain"));
      const auto line = testing::metrics_of(run).front();
      EXPECT_GT(line["memory"]["device"]["parameters"].get<int64_t>(), 0);
      if (!name.starts_with("disk") && name != "inputs") continue;
      EXPECT_GT(line["disk"]["written_bytes"].get<int64_t>(), 0);
      EXPECT_GT(line["memory"]["disk"]["activations"].get<int64_t>(), 0);
    }
  }
}

// Whatever is on the disk beside them.
TEST(TrainActivations, StatesAndActivationsShareADisk) {
  const SmallRun small;
  const DiskDirectory disk;
  const Overrides both = with(activations("offload", "disk"),
                              {"offload.optimizer=disk", "offload.path=" + disk.path().string()});
  train_on(2, small.config(2, wide_model(2), "plain"));
  train_on(2, small.config(2, with(wide_model(2), both), "both"));
  EXPECT_EQ(newest_values(small.path() / "both"), newest_values(small.path() / "plain"));
  const auto line = testing::metrics_of(small.path() / "both").front();
  EXPECT_GT(line["memory"]["disk"]["optimizer"].get<int64_t>(), 0);
  EXPECT_GT(line["memory"]["disk"]["activations"].get<int64_t>(), 0);
  EXPECT_GT(line["disk"]["busy_s"].get<double>(), 0);
}

// A run stops with states in one place and goes on with them in another.
TEST(TrainActivations, PlacementsMayChangeWhereARunGoesOn) {
  const SmallRun small;
  const DiskDirectory disk;
  const Overrides away = with(activations("offload", "disk"),
                              {"offload.optimizer=disk", "offload.path=" + disk.path().string()});
  train_on(2, small.config(2, wide_model(3), "whole"));
  int asked = 0;
  const auto stop = [&asked] { return ++asked >= 1 ? 15 : 0; };
  for (const bool away_first : {true, false}) {
    const std::string name = away_first ? "away-first" : "away-last";
    const Config first = small.config(2, away_first ? with(wide_model(3), away) : wide_model(3), name);
    const Config last = small.config(2, away_first ? wide_model(3) : with(wide_model(3), away), name);
    train_on(2, first, {.stop_signal = stop});
    train_on(2, last, {.resume = "auto"});
    EXPECT_EQ(newest_values(small.path() / name), newest_values(small.path() / "whole")) << name;
    // What others read of it does not know where its states were.
    const SavedModel saved = find_model(small.path() / name), plain = find_model(small.path() / "whole");
    const auto a = load_model(saved), b = load_model(plain);
    for (const auto& item : a->named_parameters())
      EXPECT_TRUE(at::equal(item.value(), b->named_parameters()[item.key()])) << item.key();
  }
}

TEST(TrainActivations, TracesHaveCounters) {
  Trace trace;
  trace.counter("disk, MiB", Trace::Clock::now(), {{"optimizer", 3.5}, {"activations", 1}});
  const auto events = nlohmann::json::parse("[" + trace.events(2) + "]");
  const auto& counter = events.back();
  EXPECT_EQ(counter["ph"], "C");
  EXPECT_EQ(counter["pid"], 2);
  EXPECT_EQ(counter["name"], "disk, MiB");
  EXPECT_EQ(counter["args"]["optimizer"], 3.5);
}

}  // namespace
}  // namespace zero
