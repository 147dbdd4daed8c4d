// The plan of a pipeline: each stage's parameters, bytes as its engine's plan has them, and the bubble.
#include "plan/pipeline_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plan/stage_balance.h"
#include "zero/config.h"
#include "zero/model_spec.h"

namespace {

using zero::Config;
using zero::PipelinePlan;

Config config_of(int ranks, const std::vector<std::string>& overrides) {
  const nlohmann::json json = {
      {"train_batch_size", 32},
      {"gradient_accumulation_steps", 8},
      {"zero_optimization", {{"stage", 2}}},
      {"model", {{"vocab_size", 500}, {"context_length", 64}, {"layers", 6}, {"width", 32}, {"heads", 4}}}};
  return zero::resolve(zero::parse_config(json.dump(), "small", overrides), ranks);
}

PipelinePlan plan_of(int ranks, const std::vector<std::string>& overrides) {
  const Config config = config_of(ranks, overrides);
  const zero::ModuleSpec whole = zero::trained_spec(config);
  const int last = config.parallel.tensor - 1;
  return zero::plan_pipeline(config, whole, zero::tensor_part(config, whole, last), ranks, 1, 0);
}

TEST(PipelinePlan, CountsEachStagesParameters) {
  const PipelinePlan plan = plan_of(4, {"parallel.pipeline=2", "parallel.stage_blocks=[4,2]"});
  ASSERT_EQ(plan.ranks.size(), 2);
  EXPECT_EQ(plan.dp_ranks, 2);
  constexpr int64_t kWidth = 32, kBlock = 12 * kWidth * kWidth + 13 * kWidth;
  EXPECT_EQ(plan.ranks[0].parameters, 4 * kBlock + (500 + 64) * kWidth);
  EXPECT_EQ(plan.ranks[1].parameters, 2 * kBlock + 500 * kWidth + 2 * kWidth);  // a tied head and its norm
  EXPECT_EQ(plan.ranks[0].plan.shard_ranks, 2);
  EXPECT_EQ(plan.ranks[0].activations.loss, 0);
  EXPECT_GT(plan.ranks[1].activations.loss, 0);
}

// 1F1B's ranks wait (ranks - 1) of (ranks - 1 + micro-batches), and keep as many micro-batches as there are
// ranks behind them.
TEST(PipelinePlan, KnowsTheBubbleAndWhatIsKept) {
  const PipelinePlan plan = plan_of(2, {"parallel.pipeline=2", "gradient_accumulation_steps=8"});
  EXPECT_NEAR(plan.bubble, 1.0 / 9, 1e-9);
  EXPECT_EQ(plan.ranks[0].kept_micro_batches, 2);
  EXPECT_EQ(plan.ranks[1].kept_micro_batches, 1);
  EXPECT_GE(plan.bubble_of_these, plan.bubble);
  EXPECT_NEAR(plan.ranks[0].share + plan.ranks[1].share, 2, 1e-9);
  EXPECT_LT(plan_of(2, {"parallel.pipeline=2", "parallel.schedule=zb-v"}).bubble, plan.bubble);
}

TEST(PipelinePlan, IsTold) {
  const PipelinePlan plan = plan_of(2, {"parallel.pipeline=2", "parallel.schedule=interleaved"});
  const auto json = nlohmann::json::parse(zero::to_json(plan));
  EXPECT_EQ(json["ranks"].size(), 2);
  EXPECT_EQ(json["ranks"][0]["stages"], (std::vector<int>{0, 2}));
  EXPECT_EQ(json["ranks"][0]["parameters"], plan.ranks[0].parameters);
  EXPECT_NE(zero::to_text(plan).find("2 ranks along the pipeline, 1 along dp"), std::string::npos);
}

}  // namespace
