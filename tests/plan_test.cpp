// make_plan: every figure by hand for a small tree, traffic by the paper's counts, and properties of random
// plans.
#include "zero/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "support/expect_error.h"
#include "support/random_modules.h"
#include "zero/gpt2_shape.h"

namespace zero {
namespace {

// A list of `numels.size()` units with one parameter each.
ModuleSpec chain(const std::vector<int64_t>& numels, Dtype dtype = Dtype::f32) {
  ModuleSpec list{.name = "", .is_list = true, .parameters = {}, .children = {}};
  for (int64_t numel : numels) {
    std::string name = std::to_string(list.children.size());
    list.children.push_back({.name = name,
                             .parameters = {{.name = name + ".w", .shape = {numel}, .dtype = dtype}},
                             .children = {}});
  }
  return list;
}

RankPlan rank_plan(const ModuleSpec& root, const PlanOptions& options, const LayoutOptions& layout = {}) {
  return make_plan(root, options, layout).rank;
}

constexpr int64_t kEverything = std::numeric_limits<int64_t>::max();
const LayoutOptions kTight{.alignment_numel = 1};

// Units of 10 (bf16, trainable), 6 (bf16, frozen) and 7 (fp32, trainable) elements on 4 ranks, alignment 1:
// shards of 3, 2 and 2; slabs of 12, 8 and 8.
ModuleSpec three_kinds() {
  ModuleSpec root = chain({10, 6, 7}, Dtype::bf16);
  root.children[1].parameters[0].trainable = false;
  root.children[2].parameters[0].dtype = Dtype::f32;
  return root;
}

TEST(Plan, BytesOfStageZero) {
  RankPlan rank = rank_plan(three_kinds(), {.stage = 0, .ranks = 4, .accumulation_steps = 2}, kTight);
  EXPECT_EQ(rank.parameter_bytes, 10 * 2 + 6 * 2 + 7 * 4);  // no shards, no padding
  EXPECT_EQ(rank.gradient_bytes, (10 + 7) * 4);
  EXPECT_EQ(rank.master_bytes, 10 * 4);  // fp32 parameters are their own master
  EXPECT_EQ(rank.optimizer_bytes, (10 + 7) * 8);
  EXPECT_EQ(rank.gather_window_bytes, 0);
  EXPECT_EQ(rank.bucket_bytes, 2 * (2 * 12 * 4 + 3 * 4) + 12 * 4)
      << "10 elements in parts of 3 over 4 replicas";
}

TEST(Plan, BytesOfStageOne) {
  PlanOptions options{.stage = 1, .ranks = 4, .accumulation_steps = 2};
  RankPlan rank = rank_plan(three_kinds(), options, kTight);
  EXPECT_EQ(rank.parameter_bytes, 12 * 2 + 8 * 2 + 8 * 4);
  EXPECT_EQ(rank.gradient_bytes, (12 + 8) * 4) << "whole until the boundary";
  EXPECT_EQ(rank.master_bytes, 3 * 4);
  EXPECT_EQ(rank.optimizer_bytes, (3 + 2) * 8);
  options.accumulation_steps = 1;
  EXPECT_EQ(rank_plan(three_kinds(), options, kTight).gradient_bytes, (3 + 2) * 4)
      << "reduced as it is produced";
}

TEST(Plan, BytesOfStageTwoAndThree) {
  PlanOptions options{.stage = 2, .ranks = 4, .accumulation_steps = 5, .state = {.gradient_bytes = 2}};
  RankPlan two = rank_plan(three_kinds(), options, kTight);
  EXPECT_EQ(two.parameter_bytes, 12 * 2 + 8 * 2 + 8 * 4);
  EXPECT_EQ(two.gradient_bytes, (3 + 2) * 2);
  options.stage = 3;
  RankPlan three = rank_plan(three_kinds(), options, kTight);
  EXPECT_EQ(three.parameter_bytes, 3 * 2 + 2 * 2 + 2 * 4);
  EXPECT_EQ(three.gradient_bytes, two.gradient_bytes);
  EXPECT_EQ(three.optimizer_bytes, two.optimizer_bytes);
  EXPECT_EQ(three.gather_window_bytes, 8 * 4 + 12 * 2) << "the two largest slabs";
  EXPECT_EQ(three.state_bytes(), 18 + 10 + 12 + 40);
}

TEST(Plan, GatherWindowIsBoundedByTheLargestUnitAndTheModel) {
  PlanOptions options{.stage = 3, .ranks = 2, .budget_bytes = 0};
  ModuleSpec root = chain({64, 32, 32});
  EXPECT_EQ(rank_plan(root, options).gather_window_bytes, 64 * 4);
  options.budget_bytes = 100 * 4;
  EXPECT_EQ(rank_plan(root, options).gather_window_bytes, 100 * 4);
  options.budget_bytes = kEverything;
  EXPECT_EQ(rank_plan(root, options).gather_window_bytes, (64 + 64 + 64) * 4);  // 32 is padded to 64
  options.ranks = 1;
  EXPECT_EQ(rank_plan(root, options).gather_window_bytes, 0) << "nothing to gather";
  EXPECT_EQ(make_plan(root, {.stage = 3, .ranks = 2}).budget_bytes, (64 + 64) * 4);
  EXPECT_EQ(make_plan(root, {.stage = 2, .ranks = 2}).budget_bytes, (64 + 64 + 64) * 4);
}

TEST(Plan, BucketsFollowUnitsAndTheLimit) {
  ModuleSpec root = chain({100, 40});
  root.children[0].parameters[0].trainable = false;
  PlanOptions options{.stage = 2, .ranks = 4, .communication_dtype = Dtype::bf16};
  EXPECT_EQ(rank_plan(root, options, kTight).bucket_bytes, 2 * (2 * 40 * 2 + 10 * 4))
      << "frozen units are not reduced";
  options.reduce_bucket_numel = 15;
  EXPECT_EQ(rank_plan(root, options, kTight).bucket_bytes, 2 * (2 * (15 / 4 * 4) * 2 + 15 / 4 * 4));
  options.reduce_bucket_numel = 1;
  EXPECT_EQ(rank_plan(root, options, kTight).bucket_bytes, 2 * (2 * 4 * 2 + 4))
      << "at least one element a rank";
  options.ranks = 1;
  EXPECT_EQ(rank_plan(root, options, kTight).bucket_bytes, 0);
  EXPECT_EQ(bucket_piece_numel(UnitLayout{}, 4, 100), 0);
}

// Traffic. n units of 32 * 12 elements divide by up to 4 ranks without padding.
constexpr int64_t kUnit = 32 * 12;
ModuleSpec even_chain(int units) { return chain(std::vector<int64_t>(static_cast<size_t>(units), kUnit)); }

TEST(Plan, TrafficIsTwoOrThreeTimesTheModel) {
  for (int ranks : {2, 3, 4})
    for (int units : {1, 2, 5, 12}) {
      int64_t model = units * kUnit;
      for (int stage = 0; stage <= 2; ++stage)
        EXPECT_EQ(rank_plan(even_chain(units), {.stage = stage, .ranks = ranks}).traffic_elements(),
                  2 * model);
      RankPlan three = rank_plan(even_chain(units), {.stage = 3, .ranks = ranks, .budget_bytes = 0});
      EXPECT_EQ(three.traffic_elements(), 3 * model) << ranks << " ranks, " << units << " units";
      EXPECT_EQ(three.padding_elements, 0);
    }
}

TEST(Plan, TrafficByKind) {
  RankPlan zero = rank_plan(even_chain(3), {.stage = 0, .ranks = 4, .accumulation_steps = 5});
  EXPECT_EQ(zero.all_reduce_elements, 2 * 3 * kUnit);
  EXPECT_EQ(zero.traffic_elements(), zero.all_reduce_elements);
  RankPlan one = rank_plan(even_chain(3), {.stage = 1, .ranks = 4, .accumulation_steps = 5});
  EXPECT_EQ(one.reduce_scatter_elements, 3 * kUnit) << "once at the boundary";
  EXPECT_EQ(one.all_gather_elements, 3 * kUnit);
  RankPlan two = rank_plan(even_chain(3), {.stage = 2, .ranks = 4, .accumulation_steps = 5});
  EXPECT_EQ(two.reduce_scatter_elements, 5 * 3 * kUnit) << "every micro-batch";
  EXPECT_EQ(two.all_gather_elements, 3 * kUnit) << "once after the step";
  RankPlan three =
      rank_plan(even_chain(3), {.stage = 3, .ranks = 4, .accumulation_steps = 5, .budget_bytes = 0});
  EXPECT_EQ(three.reduce_scatter_elements, 5 * 3 * kUnit);
  EXPECT_EQ(three.all_gather_elements, 5 * 2 * 3 * kUnit);
}

TEST(Plan, FrozenUnitsOnlyTravelWhereTheyAreSharded) {
  ModuleSpec root = even_chain(2);
  root.children[0].parameters[0].trainable = false;
  EXPECT_EQ(rank_plan(root, {.stage = 2, .ranks = 4}).traffic_elements(), 2 * kUnit);
  EXPECT_EQ(rank_plan(root, {.stage = 3, .ranks = 4, .budget_bytes = 0}).traffic_elements(), 5 * kUnit);
}

TEST(Plan, HybridReducesShardsOverReplicas) {
  Plan plan = make_plan(even_chain(2), {.stage = 2, .ranks = 12, .shard_group_ranks = 4});
  EXPECT_EQ(plan.shard_ranks, 4);
  EXPECT_EQ(plan.replica_ranks, 3);
  EXPECT_EQ(plan.rank.reduce_scatter_elements, 2 * kUnit);
  EXPECT_EQ(plan.rank.all_gather_elements, 2 * kUnit);
  EXPECT_EQ(plan.rank.all_reduce_elements, 2 * 2 * kUnit / 4);
  Plan alone = make_plan(even_chain(2), {.stage = 3, .ranks = 4, .shard_group_ranks = 1});
  EXPECT_EQ(alone.rank.traffic_elements(), 2 * 2 * kUnit) << "shards of one rank: plain data parallel";
}

TEST(Plan, AWorldOfOneSendsNothing) {
  for (int stage = 0; stage <= 3; ++stage)
    EXPECT_EQ(rank_plan(even_chain(4), {.stage = stage, .accumulation_steps = 3}).traffic_elements(), 0);
}

TEST(Plan, PaddingIsCountedApart) {
  // 10 elements on 4 ranks: shards of 3, two elements of padding.
  ModuleSpec root = chain({10});
  EXPECT_EQ(rank_plan(root, {.stage = 2, .ranks = 4}, kTight).traffic_elements(), 2 * 12);
  EXPECT_EQ(rank_plan(root, {.stage = 2, .ranks = 4}, kTight).padding_elements, 2 * 2);
  EXPECT_EQ(rank_plan(root, {.stage = 0, .ranks = 4}, kTight).padding_elements, 0);
  RankPlan hybrid = rank_plan(root, {.stage = 2, .ranks = 8, .shard_group_ranks = 4}, kTight);
  EXPECT_EQ(hybrid.traffic_elements(), 2 * 12 + 2 * 3);
  EXPECT_EQ(hybrid.padding_elements, 2 * 2 + 1);
}

TEST(Plan, MoreBudgetNeverMeansMoreTraffic) {
  for (int accumulation : {1, 2, 3, 50}) {
    int64_t last = kEverything;
    for (int units_in_budget = 0; units_in_budget <= 9; ++units_in_budget) {
      PlanOptions options{.stage = 3,
                          .ranks = 2,
                          .accumulation_steps = accumulation,
                          .budget_bytes = units_in_budget * kUnit * 4};
      RankPlan rank = rank_plan(even_chain(8), options);
      EXPECT_LE(rank.all_gather_elements, last);
      EXPECT_GE(rank.all_gather_elements, 8 * kUnit);
      last = rank.all_gather_elements;
    }
    EXPECT_EQ(last, 8 * kUnit) << "with everything resident each unit is gathered once after the step";
  }
}

TEST(Plan, TheDefaultBudgetSavesTheTurnAround) {
  // Two units stay: the last ones of the forward are the first ones of the backward.
  RankPlan rank = rank_plan(even_chain(8), {.stage = 3, .ranks = 2});
  EXPECT_EQ(rank.all_gather_elements, (8 + 6) * kUnit);
}

TEST(Plan, ManyMicroBatchesAreExtrapolatedExactly) {
  auto gathered = [](int accumulation) {
    return rank_plan(
               even_chain(8),
               {.stage = 3, .ranks = 2, .accumulation_steps = accumulation, .budget_bytes = 3 * kUnit * 4})
        .all_gather_elements;
  };
  int64_t step = gathered(21) - gathered(20);
  EXPECT_EQ(gathered(1000020) - gathered(20), 1000000 * step);
}

TEST(Plan, ATrillionParametersOnAThousandRanks) {
  Gpt2Shape shape{.vocab_size = 51200, .context_length = 2048, .layers = 128, .width = 25600, .heads = 160};
  Dtype half = Dtype::bf16;
  Plan plan = make_plan(gpt2_spec(shape), {.stage = 3, .ranks = 1024, .budget_bytes = 0}, {}, &half);
  double parameters = static_cast<double>(shape.parameter_count());
  EXPECT_NEAR(static_cast<double>(plan.rank.state_bytes()), 18 * parameters / 1024,
              1e-4 * 18 * parameters / 1024);
  EXPECT_EQ(plan.rank.traffic_elements() - plan.rank.padding_elements, 3 * shape.parameter_count());
}

TEST(Plan, BadOptionsAreNamed) {
  ModuleSpec root = chain({4});
  EXPECT_ERROR(make_plan(root, {.stage = 7}), Config, "stage");
  EXPECT_ERROR(make_plan(root, {.stage = -1}), Config, "stage");
  EXPECT_ERROR(make_plan(root, {.ranks = 0}), Config, "ranks: expected 1 to");
  EXPECT_ERROR(make_plan(root, {.ranks = 4, .shard_group_ranks = 3}), Config, "do not divide 4 ranks");
  EXPECT_ERROR(make_plan(root, {.ranks = 4, .shard_group_ranks = 8}), Config, "do not divide 4 ranks");
  EXPECT_ERROR(make_plan(root, {.shard_group_ranks = -1}), Config, "shard_group_ranks");
  EXPECT_ERROR(make_plan(root, {.accumulation_steps = 0}), Config, "accumulation_steps");
  EXPECT_ERROR(make_plan(root, {.budget_bytes = -2}), Config, "budget_bytes: expected -1 or more, got -2");
  EXPECT_ERROR(make_plan(root, {.prefetch_bytes = -1}), Config, "prefetch_bytes");
  EXPECT_ERROR(make_plan(root, {.reduce_bucket_numel = 0}), Config, "reduce_bucket_numel");
  EXPECT_ERROR(make_plan(root, {.state = {.gradient_bytes = 0}}), Config, "gradient_bytes");
  EXPECT_ERROR(make_plan(chain({int64_t{1} << 55}), {.stage = 2, .ranks = 2, .accumulation_steps = 1 << 30}),
               Config, "traffic");
}

// For any tree, ranks and budget: sharding more never holds more, and figures fit together.
void expect_consistent(const ModuleSpec& root, PlanOptions options) {
  std::vector<Plan> plans;
  for (int stage = 0; stage <= 3; ++stage) {
    options.stage = stage;
    plans.push_back(make_plan(root, options, {.alignment_numel = 4, .group_numel = 64}));
    const RankPlan& rank = plans.back().rank;
    EXPECT_LE(rank.padding_elements, rank.traffic_elements());
    EXPECT_GE(rank.padding_elements, 0);
    if (options.ranks == 1) {
      EXPECT_EQ(rank.traffic_elements(), 0);
    }
  }
  auto at = [&](int stage) -> const RankPlan& { return plans[static_cast<size_t>(stage)].rank; };
  EXPECT_EQ(at(1).parameter_bytes, at(2).parameter_bytes);
  EXPECT_EQ(at(3).parameter_bytes * plans[3].shard_ranks, at(2).parameter_bytes);
  EXPECT_GE(at(1).gradient_bytes, at(2).gradient_bytes);
  EXPECT_EQ(at(2).gradient_bytes, at(3).gradient_bytes);
  EXPECT_EQ(at(1).optimizer_bytes, at(3).optimizer_bytes);
  EXPECT_EQ(at(1).master_bytes, at(3).master_bytes);
  EXPECT_LE(at(3).gather_window_bytes, at(2).parameter_bytes);
  int64_t slabs = 0, passes = options.accumulation_steps;
  for (const UnitLayout& unit : plans[3].units) slabs += unit.padded_numel;
  EXPECT_LE(at(3).all_gather_elements, 2 * passes * slabs);
  if (plans[3].shard_ranks > 1) {
    EXPECT_GE(at(3).all_gather_elements, slabs);
  }
}

TEST(Plan, HoldsItsPromisesForRandomPlans) {
  std::mt19937_64 random(1);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    ModuleSpec root = testing::random_module_tree(seed);
    for (int ranks : {1, 2, 3, 6, 8}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " ranks " + std::to_string(ranks));
      PlanOptions options{.ranks = ranks, .accumulation_steps = 1 + static_cast<int>(random() % 4)};
      options.shard_group_ranks = ranks % 2 == 0 && random() % 2 == 0 ? ranks / 2 : 0;
      options.budget_bytes = static_cast<int64_t>(random() % 2000) - 1;
      options.prefetch_bytes = random() % 2 == 0 ? kEverything : static_cast<int64_t>(random() % 500);
      options.reduce_bucket_numel = 1 + static_cast<int64_t>(random() % 300);
      expect_consistent(root, options);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace zero
