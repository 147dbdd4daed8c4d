// `zero plan --cluster` and `--search`: the memory is the plan's, the parts of a step add up, the search
// finds what trying everything finds, and what it says can be pasted.
#include "plan/cluster_plan.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "plan/cluster_search.h"
#include "plan/largest_part.h"
#include "plan/pipeline_plan.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "zero/model_spec.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

using nlohmann::json;

constexpr const char* kRoot = ZERO_TEST_DATA "/../";

Cluster small_cluster(int hosts, int devices_per_host, int64_t memory_bytes) {
  Cluster cluster{.name = "small",
                  .source = "",
                  .hosts = hosts,
                  .devices_per_host = devices_per_host,
                  .memory_bytes = memory_bytes,
                  .flops_per_s = {{Dtype::f32, 1e10}, {Dtype::bf16, 4e10}},
                  .memory_bytes_per_s = 1e10,
                  .within_host = {1e9, 1e-6},
                  .between_hosts = {1e8, 1e-5},
                  .network_cards = 1};
  return cluster;
}

json small_json() {
  return {
      {"train_batch_size", 16},
      {"bf16", {{"enabled", true}}},
      {"zero_optimization", {{"stage", 2}}},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}},
      {"model", {{"vocab_size", 500}, {"context_length", 64}, {"layers", 6}, {"width", 64}, {"heads", 4}}}};
}

Config config_of(const json& text, const std::vector<std::string>& overrides) {
  return parse_config(text.dump(), "small", overrides);
}

// Trees are built once for each number of ranks that share layers.
const ModuleSpec& tree_of(const Config& config, bool is_part) {
  static std::map<int, ModuleSpec> trees;
  const int tensor = is_part ? config.parallel.tensor : 0;
  if (const auto known = trees.find(tensor); known != trees.end()) return known->second;
  const ModuleSpec whole = trained_spec(config);
  return trees.emplace(tensor, is_part ? tensor_part(config, whole, tensor - 1) : whole).first->second;
}

ClusterPrediction predicted(const Cluster& cluster, const std::vector<std::string>& overrides) {
  const Config config = resolve(config_of(small_json(), overrides), cluster.devices());
  return predict(config, tree_of(config, false), tree_of(config, true), cluster);
}

TEST(ClusterPlan, HasThePlansMemoryAndPartsThatAddUp) {
  const Cluster cluster = small_cluster(2, 4, 1 << 30);
  const ClusterPrediction found = predicted(cluster, {"gradient_accumulation_steps=2"});
  const Config config = resolve(
      config_of(small_json(), {"gradient_accumulation_steps=2", "parallel.backend=nccl"}), cluster.devices());
  const ConfigPlan plan = plan_from_config(config, trained_spec(config), cluster.devices(), {}, cluster.hosts,
                                           cluster.devices_per_host);
  EXPECT_EQ(found.peak_bytes, plan.total_bytes(2));
  EXPECT_TRUE(found.fits());
  const StepTime& time = found.time;
  EXPECT_GT(time.compute_s, 0);
  EXPECT_GT(time.data_all_s, 0);
  EXPECT_GT(time.optimizer_s, 0);
  EXPECT_EQ(time.tensor_s + time.bubble_s + time.pipeline_s, 0);
  EXPECT_DOUBLE_EQ(time.step_s(), time.compute_s + time.data_s + time.optimizer_s);
  EXPECT_DOUBLE_EQ(time.tokens_per_s, 16 * 64 / time.step_s());
}

TEST(ClusterPlan, HasTheTimeOfEveryAxis) {
  const Cluster cluster = small_cluster(2, 4, 1 << 30);
  const ClusterPrediction tensor = predicted(cluster, {"parallel.tensor=2"});
  EXPECT_GT(tensor.time.tensor_s, 0);
  // Half the layers' products on each rank, and half of the ranks have samples of their own.
  const ClusterPrediction pipeline =
      predicted(cluster, {"parallel.pipeline=2", "gradient_accumulation_steps=4"});
  EXPECT_GT(pipeline.time.bubble_s, 0);
  EXPECT_GT(pipeline.time.pipeline_s, 0);
  const ClusterPrediction halves =
      predicted(cluster, {"parallel.pipeline=2", "gradient_accumulation_steps=4", "parallel.schedule=zb-h1"});
  EXPECT_LT(halves.time.bubble_s, pipeline.time.bubble_s);
  const ClusterPrediction again = predicted(cluster, {"activation_checkpointing.recompute=all"});
  const ClusterPrediction kept = predicted(cluster, {});
  EXPECT_GT(again.time.compute_s, kept.time.compute_s);
  EXPECT_LT(again.activation_bytes, kept.activation_bytes);
  const json told = json::parse(to_json(pipeline, cluster));
  EXPECT_EQ(told["pipeline_ranks"], 2);
  EXPECT_DOUBLE_EQ(told["step_s"], pipeline.time.step_s());
  EXPECT_NE(to_text(pipeline, cluster).find("4 along dp, 1 along tp, 2 along pp"), std::string::npos);
}

// Two ranks have two and three of five heads; four have a head of keys between them, whole.
TEST(ClusterPlan, CountsTheWorkOfTheRankThatHasMost) {
  const LargestPart odd = largest_part(Gpt2Shape{.width = 40, .heads = 5}, 2);
  EXPECT_DOUBLE_EQ(odd.scores, 3.0 / 5);
  EXPECT_DOUBLE_EQ(odd.products, (4 * 3.0 / 5 + 8 * 1.0 / 2) / 12);
  const LargestPart keys =
      largest_part(LlamaShape{.width = 32, .heads = 4, .kv_heads = 1, .head_width = 8, .mlp_width = 64}, 4);
  EXPECT_DOUBLE_EQ(keys.scores, 1.0 / 4);
  EXPECT_DOUBLE_EQ(keys.products, (2 * 32 / 4.0 + 2 * 8 + 3 * 64 / 4.0) / (2 * 32 + 2 * 8 + 3 * 64));

  const auto scores = [](const char* tensor) {
    const Config config = resolve(config_of(small_json(), {tensor, "model.heads=5", "model.width=40"}), 2);
    const ModuleSpec whole = trained_spec(config);
    const ModuleSpec part = tensor_part(config, whole, config.parallel.tensor - 1);
    const PipelinePlan plan = plan_pipeline(config, whole, part, 2, 1, 0);
    return work_of(config, plan.ranks[0], 2, 1).score_flops /
           static_cast<double>(config.train_micro_batch_size);
  };
  EXPECT_DOUBLE_EQ(scores("parallel.tensor=2"), scores("parallel.tensor=1") * 3 / 5);
}

TEST(ClusterPlan, RefusesWhatItCannotPredict) {
  const Cluster cluster = small_cluster(2, 4, 1 << 30);
  const Config wide = resolve(config_of(small_json(), {"parallel.tensor=8", "model.heads=8"}), 8);
  const ModuleSpec whole = trained_spec(wide);
  EXPECT_ERROR(predict(wide, whole, tensor_part(wide, whole, 7), cluster), Config,
               "8 ranks that share layers do not fit hosts of 4 devices");
  EXPECT_ERROR(predicted(cluster, {"activation_checkpointing.recompute=2"}), Unsupported, "--cluster");
  EXPECT_ERROR(part_of(cluster, 9), Config, "9 ranks on the 8 devices");
  EXPECT_ERROR(part_of(cluster, 6), Config, "6 ranks do not fill hosts of 4 devices");
  EXPECT_EQ(part_of(cluster, 4).hosts, 1);
  EXPECT_EQ(part_of(cluster, 2).devices_per_host, 2);
}

// Everything that the search may choose, predicted by itself.
double fastest_of_all(const Cluster& cluster) {
  double fastest = 1e30;
  for (const int tensor : {1, 2, 4})
    for (const int pipeline : {1, 2, 4})
      for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-h2", "interleaved"})
        for (const int stage : {0, 1, 2, 3})
          for (const int micro_batch : {1, 2, 4, 8, 16})
            for (const char* recompute : {"none", "all"}) {
              if (pipeline == 1 && schedule != std::string("1f1b")) continue;
              try {
                const ClusterPrediction found =
                    predicted(cluster, {"parallel.tensor=" + std::to_string(tensor),
                                        "parallel.sequence=" + std::string(tensor > 1 ? "true" : "false"),
                                        "parallel.pipeline=" + std::to_string(pipeline),
                                        "parallel.schedule=" + std::string(schedule),
                                        "zero_optimization.stage=" + std::to_string(stage),
                                        "train_micro_batch_size_per_gpu=" + std::to_string(micro_batch),
                                        "activation_checkpointing.recompute=" + std::string(recompute)});
                if (found.fits()) fastest = std::min(fastest, found.time.step_s());
              } catch (const Error&) {
                continue;  // ranks that do not divide, and what this version refuses
              }
            }
  return fastest;
}

ClusterSearch searched(const Cluster& cluster) {
  const Config config = config_of(small_json(), {});
  return search_cluster(config, trained_spec(config), tensor_part, cluster);
}

TEST(ClusterSearch, FindsWhatTryingEverythingFinds) {
  // With memory for anything, and with so little that most settings do not fit.
  for (const int64_t memory : {int64_t{1} << 30, int64_t{7} << 20}) {
    const Cluster cluster = small_cluster(2, 2, memory);
    const ClusterSearch found = searched(cluster);
    ASSERT_FALSE(found.best.empty()) << memory;
    EXPECT_LE(found.best.size(), 10u);
    for (const ClusterPrediction& one : found.best) EXPECT_TRUE(one.fits());
    // It ranks by formulas, and so may miss the last percent.
    EXPECT_LE(found.best.front().time.step_s(), fastest_of_all(cluster) * 1.02) << memory;
  }
  EXPECT_GT(searched(small_cluster(2, 2, 7 << 20)).too_large, 0);
  EXPECT_TRUE(searched(small_cluster(2, 2, 1000)).best.empty());
}

TEST(ClusterSearch, SaysTheSameAgainAndWhatCanBePasted) {
  const Cluster cluster = small_cluster(2, 4, 1 << 30);
  const ClusterSearch found = searched(cluster);
  EXPECT_EQ(to_json(found, cluster), to_json(searched(cluster), cluster));
  for (const ClusterPrediction& one : found.best) {
    json pasted = small_json();
    pasted.merge_patch(json::parse(keys_of(one)));
    const Config config = resolve(parse_config(pasted.dump(), "pasted"), cluster.devices());
    const ModuleSpec whole = trained_spec(config);
    const ClusterPrediction again =
        predict(config, whole, tensor_part(config, whole, config.parallel.tensor - 1), cluster);
    EXPECT_EQ(again.time.step_s(), one.time.step_s());
    EXPECT_EQ(again.peak_bytes, one.peak_bytes);
  }
  EXPECT_NE(to_text(found, cluster).find("as keys of the configuration"), std::string::npos);
}

TEST(ClusterSearch, NeedsABatch) {
  json text = small_json();
  text.erase("train_batch_size");
  text["train_micro_batch_size_per_gpu"] = 1;
  const Config config = parse_config(text.dump(), "small");
  EXPECT_ERROR(search_cluster(config, trained_spec(config), tensor_part, small_cluster(1, 2, 1 << 30)),
               Config, "train_batch_size: --search keeps it, and it is not given");
}

// Every command of docs/cluster.md that starts with "zero plan".
PlanRequest request_of(const std::string& command) {
  std::istringstream words(command);
  PlanRequest request;
  std::string word, value;
  words >> word >> word;  // zero plan
  while (words >> word) {
    if (word == "--search")
      request.search = true;
    else if (word == "--json")
      request.json = true;
    else if (word == "--cluster" && words >> value)
      request.cluster = kRoot + value;
    else if (word == "--ranks" && words >> value)
      request.ranks = std::stoi(value);
    else if (word == "--set" && words >> value)
      request.overrides.push_back(value);
    else
      request.config = kRoot + word;
  }
  return request;
}

TEST(ClusterDocumentation, ShowsCommandsThatRun) {
  std::ifstream document(std::string(kRoot) + "docs/cluster.md");
  int commands = 0;
  for (std::string line; std::getline(document, line);) {
    if (!line.starts_with("zero plan configs/")) continue;
    ++commands;
    EXPECT_FALSE(answer(request_of(line), trained_spec, tensor_part).text.empty()) << line;
  }
  EXPECT_GE(commands, 2);
}

}  // namespace
}  // namespace zero
