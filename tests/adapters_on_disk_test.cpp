// Adapters (LoRA) on a base that is on disk: the same run as in memory, resumed and consolidated too.
#include <gtest/gtest.h>

#include <map>

#include "support/disk_directory.h"
#include "support/model_directory.h"
#include "support/small_run.h"
#include "zero/consolidate.h"
#include "zero/from_config.h"
#include "zero/hf_model.h"
#include "zero/load_model.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

using testing::DiskDirectory;
using testing::newest_values;
using testing::SmallRun;
using testing::train_on;

using Settings = std::vector<std::string>;

class AdaptersOnDisk : public ::testing::TestWithParam<int> {
 protected:
  Config config(const std::string& model, Settings settings, const std::string& name) {
    const auto from = testing::write_model_directory(directory_, model, testing::kSmallModels.at(model), {});
    const nlohmann::json json = {
        {"train_batch_size", 12},
        {"gradient_clipping", 0.0},
        {"zero_optimization", {{"stage", 3}}},
        {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
        {"model", {{"from", from}}},
        {"lora", {{"rank", 2}, {"targets", {model == "gpt2" ? "*.c_attn" : "*.q_proj"}}}},
        {"data", {{"train", small_.path() / "train.tokens"}, {"eval", small_.path() / "eval.tokens"}}},
        {"parallel", {{"timeout_s", 30}}},
        {"checkpoint", {{"interval_steps", 2}, {"keep_last", 0}}},
        {"run", {{"directory", small_.path() / name}, {"steps", 4}, {"seed", 3}, {"eval_batches", 2}}}};
    settings.push_back("offload.path=" + disk_.path().string());
    return resolve(adopt_model(parse_config(json.dump(), "small", settings)), GetParam());
  }
  testing::TemporaryDirectory directory_;
  DiskDirectory disk_;
  SmallRun small_;
};
INSTANTIATE_TEST_SUITE_P(Ranks, AdaptersOnDisk, ::testing::Values(1, 2));

TEST_P(AdaptersOnDisk, AreTheSameRunAsInMemory) {
  const std::map<std::string, Settings> ways{
      {"base", {"offload.parameter=disk"}},
      {"clipped",
       {"offload.parameter=disk", "offload.optimizer=disk", "offload.gradient=disk",
        "gradient_clipping=0.1"}},
      {"all", {"offload.parameter=disk", "offload.optimizer=disk", "offload.gradient=disk"}},
      {"in-place",
       {"offload.parameter=disk", "offload.optimizer=disk", "offload.gradient=disk",
        "offload.step_in_backward=in_place"}}};
  const int ranks = GetParam();
  const ConsolidateOptions merged{.merge_adapters = true};
  for (const std::string model : {"gpt2", "llama"}) {
    const auto with_type = [&](Settings settings) {
      settings.push_back(std::string("bf16.enabled=") + (model == "llama" ? "true" : "false"));
      return settings;
    };
    for (const auto& [way, settings] : ways) {
      SCOPED_TRACE(model + ", " + way);
      Settings in_memory;
      if (way == "clipped") in_memory.push_back("gradient_clipping=0.1");
      const std::string plain = model + (way == "clipped" ? "-plain-clipped" : "-plain");
      if (!std::filesystem::exists(small_.path() / plain))
        train_on(ranks, config(model, with_type(in_memory), plain));
      const std::string name = model + "-" + way;
      train_on(ranks, config(model, with_type(settings), name));
      EXPECT_EQ(testing::course_of(small_.path() / name), testing::course_of(small_.path() / plain));
      EXPECT_EQ(newest_values(small_.path() / name), newest_values(small_.path() / plain));

      // (What a step writes of frozen units, engine_step_from_disk_test.cpp counts.)
      const auto line = testing::metrics_of(small_.path() / name).front();
      EXPECT_GT(line["disk"]["read_bytes"].get<int64_t>(), 0);
      EXPECT_GT(line["memory"]["disk"]["parameters"].get<int64_t>(), 0);

      // Resumed from the middle, with the base where it was or in memory.
      for (const bool stays : {true, false}) {
        const std::string resumed = name + (stays ? "-resumed" : "-fetched");
        train_on(ranks, config(model, with_type(stays ? settings : in_memory), resumed),
                 {.resume = (small_.path() / name / "checkpoints/step-00000002").string()});
        EXPECT_EQ(newest_values(small_.path() / resumed), newest_values(small_.path() / plain));
      }

      const auto out = [&](const std::string& run) {
        const auto place = small_.path() / (name + run + "-out");
        const Consolidated made =
            consolidate(find_checkpoint(small_.path() / (run.empty() ? name : run)), place, merged);
        std::map<std::string, std::string> files;
        for (const std::string& file : made.files) files[file] = testing::read_bytes(place / file);
        return files;
      };
      EXPECT_EQ(out(""), out(plain));
    }
  }
}

}  // namespace
}  // namespace zero
