// make_plan: every figure by hand for a small tree, traffic by the paper's counts, and properties of random
// plans.
#include "zero/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "plan/layout.h"
#include "plan/residency_policy.h"
#include "support/expect_error.h"
#include "support/random_modules.h"

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

RankPlan rank_plan(const ModuleSpec& root, const EngineOptions& options, int ranks,
                   int64_t alignment_numel = 32) {
  return make_plan(root, options, {.ranks = ranks}, {.splits_master = false}, alignment_numel).rank;
}

constexpr int64_t kEverything = std::numeric_limits<int64_t>::max();
constexpr int64_t kTight = 1;  // no padding for alignment

// Units of 10 (bf16, trainable), 6 (bf16, frozen) and 7 (fp32, trainable) elements on 4 ranks, alignment 1:
// shards of 3, 2 and 2; slabs of 12, 8 and 8.
ModuleSpec three_kinds() {
  ModuleSpec root = chain({10, 6, 7}, Dtype::bf16);
  root.children[1].parameters[0].trainable = false;
  root.children[2].parameters[0].dtype = Dtype::f32;
  return root;
}

TEST(Plan, BytesOfStageZero) {
  RankPlan rank = rank_plan(three_kinds(), {.stage = 0, .accumulation_steps = 2}, 4, kTight);
  EXPECT_EQ(rank.parameter_bytes, 10 * 2 + 6 * 2 + 7 * 4);  // no shards, no padding
  EXPECT_EQ(rank.gradient_bytes, (10 + 7) * 4);
  EXPECT_EQ(rank.master_bytes, 10 * 4);  // fp32 parameters are their own master
  EXPECT_EQ(rank.optimizer_bytes, (10 + 7) * 8);
  EXPECT_EQ(rank.gather_window_bytes, 0);
  EXPECT_EQ(rank.bucket_bytes, 2 * (2 * 12 * 4 + 3 * 4) + 12 * 4)
      << "10 elements in parts of 3 over 4 replicas";
}

TEST(Plan, BytesOfStageOne) {
  EngineOptions options{.stage = 1, .accumulation_steps = 2};
  RankPlan rank = rank_plan(three_kinds(), options, 4, kTight);
  EXPECT_EQ(rank.parameter_bytes, 12 * 2 + 8 * 2 + 8 * 4);
  EXPECT_EQ(rank.gradient_bytes, (12 + 8) * 4) << "whole until the boundary";
  EXPECT_EQ(rank.master_bytes, 3 * 4);
  EXPECT_EQ(rank.optimizer_bytes, (3 + 2) * 8);
  options.accumulation_steps = 1;
  EXPECT_EQ(rank_plan(three_kinds(), options, 4, kTight).gradient_bytes, (3 + 2) * 4)
      << "reduced as it is produced";
}

TEST(Plan, BytesOfStageTwoAndThree) {
  EngineOptions options{.stage = 2, .accumulation_steps = 5, .accumulation_dtype = Dtype::bf16};
  RankPlan two = rank_plan(three_kinds(), options, 4, kTight);
  EXPECT_EQ(two.parameter_bytes, 12 * 2 + 8 * 2 + 8 * 4);
  EXPECT_EQ(two.gradient_bytes, (3 + 2) * 2);
  options.stage = 3;
  RankPlan three = rank_plan(three_kinds(), options, 4, kTight);
  EXPECT_EQ(three.parameter_bytes, 3 * 2 + 2 * 2 + 2 * 4);
  EXPECT_EQ(three.gradient_bytes, two.gradient_bytes);
  EXPECT_EQ(three.optimizer_bytes, two.optimizer_bytes);
  EXPECT_EQ(three.gather_window_bytes, 8 * 4 + 12 * 2 + 8 * 2) << "the three largest slabs";
  EXPECT_EQ(three.state_bytes(), 18 + 10 + 12 + 40);
}

TEST(Plan, GatherWindowIsBoundedByTheLargestUnitAndTheModel) {
  EngineOptions options{.stage = 3, .budget_bytes = 0};
  ModuleSpec root = chain({64, 32, 32});
  EXPECT_EQ(rank_plan(root, options, 2).gather_window_bytes, 64 * 4);
  options.budget_bytes = 100 * 4;
  EXPECT_EQ(rank_plan(root, options, 2).gather_window_bytes, 100 * 4);
  options.budget_bytes = kEverything;
  EXPECT_EQ(rank_plan(root, options, 2).gather_window_bytes, (64 + 64 + 64) * 4);  // 32 is padded to 64
  EXPECT_EQ(rank_plan(root, options, 1).gather_window_bytes, 0) << "nothing to gather";
  EXPECT_EQ(make_plan(root, {.stage = 3}, {.ranks = 2}).budget_bytes, (64 + 64 + 64) * 4)
      << "the three largest are all there are";
  EXPECT_EQ(make_plan(chain({64, 32, 8, 16}), {.stage = 3}, {.ranks = 2}).budget_bytes, (64 + 64 + 64) * 4);
  EXPECT_EQ(make_plan(root, {.stage = 2}, {.ranks = 2}).budget_bytes, (64 + 64 + 64) * 4);
}

TEST(Plan, BucketsFollowUnitsAndTheLimit) {
  ModuleSpec root = chain({100, 40});
  root.children[0].parameters[0].trainable = false;
  EngineOptions options{.stage = 2, .communication_dtype = Dtype::bf16};
  EXPECT_EQ(rank_plan(root, options, 4, kTight).bucket_bytes, 2 * (2 * 40 * 2 + 10 * 4))
      << "frozen units are not reduced";
  options.reduce_bucket_numel = 15;
  EXPECT_EQ(rank_plan(root, options, 4, kTight).bucket_bytes, 2 * (2 * (15 / 4 * 4) * 2 + 15 / 4 * 4));
  options.reduce_bucket_numel = 1;
  EXPECT_EQ(rank_plan(root, options, 4, kTight).bucket_bytes, 2 * (2 * 4 * 2 + 4))
      << "at least one element a rank";
  EXPECT_EQ(rank_plan(root, options, 1, kTight).bucket_bytes, 0);
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
        EXPECT_EQ(rank_plan(even_chain(units), {.stage = stage}, ranks).traffic_elements(), 2 * model);
      RankPlan three = rank_plan(even_chain(units), {.stage = 3, .budget_bytes = 0}, ranks);
      EXPECT_EQ(three.traffic_elements(), 3 * model) << ranks << " ranks, " << units << " units";
      EXPECT_EQ(three.padding_elements, 0);
    }
}

TEST(Plan, TrafficByKind) {
  RankPlan zero = rank_plan(even_chain(3), {.stage = 0, .accumulation_steps = 5}, 4);
  EXPECT_EQ(zero.all_reduce_elements, 2 * 3 * kUnit);
  EXPECT_EQ(zero.traffic_elements(), zero.all_reduce_elements);
  RankPlan one = rank_plan(even_chain(3), {.stage = 1, .accumulation_steps = 5}, 4);
  EXPECT_EQ(one.reduce_scatter_elements, 3 * kUnit) << "once at the boundary";
  EXPECT_EQ(one.all_gather_elements, 3 * kUnit);
  RankPlan two = rank_plan(even_chain(3), {.stage = 2, .accumulation_steps = 5}, 4);
  EXPECT_EQ(two.reduce_scatter_elements, 5 * 3 * kUnit) << "every micro-batch";
  EXPECT_EQ(two.all_gather_elements, 3 * kUnit) << "once after the step";
  RankPlan three = rank_plan(even_chain(3), {.stage = 3, .accumulation_steps = 5, .budget_bytes = 0}, 4);
  EXPECT_EQ(three.reduce_scatter_elements, 5 * 3 * kUnit);
  EXPECT_EQ(three.all_gather_elements, 5 * 2 * 3 * kUnit);
}

TEST(Plan, FrozenUnitsOnlyTravelWhereTheyAreSharded) {
  ModuleSpec root = even_chain(2);
  root.children[0].parameters[0].trainable = false;
  EXPECT_EQ(rank_plan(root, {.stage = 2}, 4).traffic_elements(), 2 * kUnit);
  EXPECT_EQ(rank_plan(root, {.stage = 3, .budget_bytes = 0}, 4).traffic_elements(), 5 * kUnit);
}

TEST(Plan, FrozenUnitsThatStayDoNotTravel) {
  ModuleSpec root = even_chain(4);
  for (int unit : {0, 1}) root.children[static_cast<size_t>(unit)].parameters[0].trainable = false;
  const auto gathered = [&](int64_t units) {
    return rank_plan(root, {.stage = 3, .budget_bytes = units * kUnit * 4}, 2).all_gather_elements / kUnit;
  };
  EXPECT_EQ(gathered(4), 2) << "nothing but what the step changed";
  EXPECT_EQ(gathered(0), 2 * 4);
}

TEST(Plan, HybridReducesShardsOverReplicas) {
  Plan plan = make_plan(even_chain(2), {.stage = 2, .shard_group_ranks = 4}, {.ranks = 12});
  EXPECT_EQ(plan.shard_ranks, 4);
  EXPECT_EQ(plan.replica_ranks, 3);
  EXPECT_EQ(plan.rank.reduce_scatter_elements, 2 * kUnit);
  EXPECT_EQ(plan.rank.all_gather_elements, 2 * kUnit);
  EXPECT_EQ(plan.rank.all_reduce_elements, 2 * 2 * kUnit / 4);
  Plan alone = make_plan(even_chain(2), {.stage = 3, .shard_group_ranks = 1}, {.ranks = 4});
  EXPECT_EQ(alone.rank.traffic_elements(), 2 * 2 * kUnit) << "shards of one rank: plain data parallel";
}

TEST(Plan, AWorldOfOneSendsNothing) {
  for (int stage = 0; stage <= 3; ++stage)
    EXPECT_EQ(rank_plan(even_chain(4), {.stage = stage, .accumulation_steps = 3}, 1).traffic_elements(), 0);
}

TEST(Plan, PaddingIsCountedApart) {
  // 10 elements on 4 ranks: shards of 3, two elements of padding.
  ModuleSpec root = chain({10});
  EXPECT_EQ(rank_plan(root, {.stage = 2}, 4, kTight).traffic_elements(), 2 * 12);
  EXPECT_EQ(rank_plan(root, {.stage = 2}, 4, kTight).padding_elements, 2 * 2);
  EXPECT_EQ(rank_plan(root, {.stage = 0}, 4, kTight).padding_elements, 0);
  RankPlan hybrid = rank_plan(root, {.stage = 2, .shard_group_ranks = 4}, 8, kTight);
  EXPECT_EQ(hybrid.traffic_elements(), 2 * 12 + 2 * 3);
  EXPECT_EQ(hybrid.padding_elements, 2 * 2 + 1);
}

TEST(Plan, MoreBudgetNeverMeansMoreTraffic) {
  for (int accumulation : {1, 2, 3, 50}) {
    int64_t last = kEverything;
    for (int units_in_budget = 0; units_in_budget <= 9; ++units_in_budget) {
      const EngineOptions options{
          .stage = 3, .accumulation_steps = accumulation, .budget_bytes = units_in_budget * kUnit * 4};
      RankPlan rank = rank_plan(even_chain(8), options, 2);
      EXPECT_LE(rank.all_gather_elements, last);
      EXPECT_GE(rank.all_gather_elements, 8 * kUnit);
      last = rank.all_gather_elements;
    }
    EXPECT_EQ(last, 8 * kUnit) << "with everything resident each unit is gathered once after the step";
  }
}

TEST(Plan, TheDefaultBudgetSavesTheTurnAround) {
  // Three units stay: the last ones of the forward are the first ones of the backward.
  RankPlan rank = rank_plan(even_chain(8), {.stage = 3}, 2);
  EXPECT_EQ(rank.all_gather_elements, (8 + 5) * kUnit);
}

TEST(Plan, ManyMicroBatchesAreExtrapolatedExactly) {
  auto gathered = [](int accumulation) {
    return rank_plan(even_chain(8),
                     {.stage = 3, .accumulation_steps = accumulation, .budget_bytes = 3 * kUnit * 4}, 2)
        .all_gather_elements;
  };
  int64_t step = gathered(21) - gathered(20);
  EXPECT_EQ(gathered(1000020) - gathered(20), 1000000 * step);
}

// The sum over units of what the policy fetches in a step of so many micro-batches, played whole.
int64_t played(const Plan& plan, int64_t micro_batches) {
  ResidencyOptions options{
      .unit_bytes = {}, .budget_bytes = plan.budget_bytes, .prefetch_bytes = plan.prefetch_bytes};
  for (const UnitLayout& unit : plan.units) {
    options.unit_bytes.push_back(unit.slab_bytes());
    options.lasting.push_back(!unit.trainable);
  }
  ResidencyPolicy policy(options);
  int64_t elements = 0;
  const auto count = [&](const ResidencyPolicy::Actions& actions) {
    for (int unit : actions.fetch) elements += plan.units[static_cast<size_t>(unit)].padded_numel;
  };
  const int units = static_cast<int>(plan.units.size());
  for (int pass = 0; pass < 5; ++pass) {
    elements = 0;
    count(policy.begin_pass(ResidencyPolicy::Pass::Train));
    for (int64_t i = 0; i < micro_batches; ++i) {
      for (int unit = 0; unit < units; ++unit) count(policy.touch({&unit, 1}));
      count(policy.trim());
      for (int unit = units; unit-- > 0;) count(policy.touch({&unit, 1}));
      count(policy.trim());
    }
    count(policy.end_pass());
    policy.forget_values();
  }
  return elements;
}

TEST(Plan, LongStepsAreWhatThePolicyPlays) {
  std::mt19937 random(31);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<int64_t> numels(1 + random() % 7);
    int64_t all = 0;
    for (int64_t& numel : numels) all += numel = 1 + static_cast<int64_t>(random() % 60);
    EngineOptions options{.stage = 3};
    options.accumulation_steps = 33 + static_cast<int>(random() % 100);
    options.budget_bytes = static_cast<int64_t>(random() % static_cast<uint64_t>(5 * all));
    options.prefetch_bytes = static_cast<int64_t>(random() % static_cast<uint64_t>(3 * all));
    ModuleSpec root = chain(numels);
    for (ModuleSpec& unit : root.children) unit.parameters[0].trainable = trial % 2 == 0 || random() % 2 == 0;
    const Plan plan = make_plan(root, options, {.ranks = 2}, {}, kTight);
    EXPECT_EQ(plan.rank.all_gather_elements, played(plan, options.accumulation_steps)) << trial;
  }
}

// Blocks of neighbours share memory where it changes at their ends only.
TEST(Plan, RanksThatShareMemory) {
  const auto together = [](std::vector<int> memories) { return RankPlaces::of(memories).together; };
  EXPECT_EQ(together({0}), 1);
  EXPECT_EQ(together({0, 0, 0, 0}), 4);
  EXPECT_EQ(together({0, 0, 1, 1}), 2);
  EXPECT_EQ(together({0, 1, 2, 3}), 1);
  EXPECT_EQ(together({0, 1, 0, 1}), 1);
  EXPECT_EQ(together({0, 0, 0, 0, 1, 1}), 2);
  EXPECT_EQ(together({0, 0, 0, 1}), 1) << "pairs of which one is on two hosts";
  EXPECT_EQ(RankPlaces::of(std::vector<int>(6)).ranks, 6);
}

// Every rank must come to the same plan, so a shard group shares memory only where all shard groups do.
TEST(Plan, UnevenHostsShareNothing) {
  const EngineOptions pairs{.stage = 3, .shard_group_ranks = 2};
  const std::vector<int> even{0, 0, 1, 1}, uneven{0, 0, 1, 2};
  EXPECT_EQ(make_plan(even_chain(2), pairs, RankPlaces::of(even)).placements.parameter, Placement::Common);
  EXPECT_EQ(make_plan(even_chain(2), pairs, RankPlaces::of(uneven)).placements.parameter, Placement::Shard);
}

TEST(Plan, NothingIsFetchedAheadWithoutOverlap) {
  EXPECT_EQ(make_plan(even_chain(2), {.stage = 3, .prefetch_bytes = 5}).prefetch_bytes, 5);
  EXPECT_EQ(make_plan(even_chain(2), {.stage = 3, .prefetch_bytes = 5, .overlap = false}).prefetch_bytes, 0);
}

TEST(Plan, OwnOperatorsRunOnProcessorsOnly) {
  EXPECT_TRUE(make_plan(even_chain(1), {}).cpu_operators);
  EXPECT_FALSE(make_plan(even_chain(1), {}, {.on_cpu = false}).cpu_operators);
}

TEST(Plan, BadOptionsAreNamed) {
  ModuleSpec root = chain({4});
  EXPECT_ERROR(make_plan(root, {.stage = 7}), Config, "stage");
  EXPECT_ERROR(make_plan(root, {.stage = -1}), Config, "stage");
  EXPECT_ERROR(make_plan(root, {}, {.ranks = 0}), Config, "ranks: expected 1 to");
  EXPECT_ERROR(make_plan(root, {.stage = 3, .shard_group_ranks = 3}, {.ranks = 4}), Config,
               "do not divide 4 ranks");
  EXPECT_ERROR(make_plan(root, {.stage = 3, .shard_group_ranks = 8}, {.ranks = 4}), Config,
               "do not divide 4 ranks");
  EXPECT_ERROR(make_plan(root, {.shard_group_ranks = -1}), Config, "shard_group_ranks");
  EXPECT_ERROR(make_plan(root, {.accumulation_steps = 0}), Config, "accumulation_steps");
  EXPECT_ERROR(make_plan(root, {.budget_bytes = -2}), Config, "budget_bytes: expected -1 or more, got -2");
  EXPECT_ERROR(make_plan(root, {.prefetch_bytes = -1}), Config, "prefetch_bytes");
  EXPECT_ERROR(make_plan(root, {.reduce_bucket_numel = 0}), Config, "reduce_bucket_numel");
  EXPECT_ERROR(make_plan(root, {.stage = 0, .shard_group_ranks = 2}, {.ranks = 4}), Config,
               "shard_group_ranks: stage 0 shards nothing");
  EXPECT_ERROR(make_plan(root, {}, {.ranks = 4, .together = 3}), Config, "together: 3 ranks");
  EXPECT_ERROR(make_plan(root, {.gradient_clipping = -1}), Config, "gradient_clipping");
  EXPECT_ERROR(make_plan(root, {.gradient_predivide_factor = 0}), Config, "gradient_predivide_factor");
  EXPECT_ERROR(make_plan(root, {.accumulation_dtype = Dtype::i32}), Config,
               "accumulation_dtype: expected fp32, bf16 or fp16, got int32");
  EXPECT_ERROR(make_plan(root, {}, {}, {.states = -1}), Config, "optimizer bytes");
  EXPECT_ERROR(
      make_plan(chain({int64_t{1} << 55}), {.stage = 2, .accumulation_steps = 1 << 30}, {.ranks = 2}), Config,
      "traffic");
}

// For any tree, ranks and budget: sharding more never holds more, and figures fit together.
void expect_consistent(const ModuleSpec& root, EngineOptions options, int ranks) {
  std::vector<Plan> plans;
  const int group = options.shard_group_ranks;
  for (int stage = 0; stage <= 3; ++stage) {
    options.stage = stage;
    options.shard_group_ranks = stage == 0 ? 0 : group;
    plans.push_back(make_plan(root, options, {.ranks = ranks}, {}, 4));
    const RankPlan& rank = plans.back().rank;
    EXPECT_LE(rank.padding_elements, rank.traffic_elements());
    EXPECT_GE(rank.padding_elements, 0);
    if (ranks == 1) {
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
  int64_t slabs = 0, changed = 0;
  for (const UnitLayout& unit : plans[3].units) {
    slabs += unit.padded_numel;
    if (unit.trainable) changed += unit.padded_numel;
  }
  EXPECT_LE(at(3).all_gather_elements, 2 * options.accumulation_steps * slabs);
  if (plans[3].shard_ranks > 1) {
    EXPECT_GE(at(3).all_gather_elements, changed);
  }
}

TEST(Plan, HoldsItsPromisesForRandomPlans) {
  std::mt19937_64 random(1);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    ModuleSpec root = testing::random_module_tree(seed);
    for (int ranks : {1, 2, 3, 6, 8}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + " ranks " + std::to_string(ranks));
      EngineOptions options{.accumulation_steps = 1 + static_cast<int>(random() % 4), .group_numel = 64};
      options.shard_group_ranks = ranks % 2 == 0 && random() % 2 == 0 ? ranks / 2 : 0;
      options.budget_bytes = static_cast<int64_t>(random() % 2000) - 1;
      options.prefetch_bytes = random() % 2 == 0 ? kEverything : static_cast<int64_t>(random() % 500);
      options.reduce_bucket_numel = 1 + static_cast<int64_t>(random() % 300);
      expect_consistent(root, options, ranks);
      if (HasFailure()) return;
    }
  }
}

TEST(Plan, StatesOnDiskLeaveMemoryForABuffer) {
  EngineOptions options{.stage = 1};
  const RankPlan memory = rank_plan(three_kinds(), options, 4, kTight);
  options.tiers.master = options.tiers.optimizer = Tier::Disk;
  options.offload.path = "somewhere";
  const RankPlan disk = rank_plan(three_kinds(), options, 4, kTight);
  const int64_t states = memory.master_bytes + memory.optimizer_bytes;
  EXPECT_EQ(disk.tier_bytes[static_cast<size_t>(Tier::Disk)], states);
  EXPECT_EQ(disk.tier_bytes[static_cast<size_t>(Tier::Device)], memory.state_bytes() - states);
  EXPECT_EQ(disk.total_bytes(), memory.total_bytes() - states + disk.ring_bytes + disk.ahead_bytes);
  options.offload.step_in_backward = StepInBackward::Off;
  const RankPlan after = rank_plan(three_kinds(), options, 4, kTight);
  EXPECT_EQ(after.ahead_bytes, 0);
  EXPECT_EQ(disk.file_bytes, 2 * after.file_bytes) << "each piece has two places";
  // Two units: each state is a block of 4 KiB, the fp16 unit has a master beside its moments.
  EXPECT_EQ(after.file_bytes, (3 + 2) * 4096);
  EXPECT_EQ(disk.step_read_bytes, after.file_bytes);
  EXPECT_EQ(disk.step_written_bytes, after.file_bytes);
  EXPECT_EQ(disk.ring_bytes, options.offload.buffer_count * 3 * 4096);
  options.offload.ratio = 0.5;
  const RankPlan part = rank_plan(three_kinds(), options, 4, kTight);
  EXPECT_EQ(part.step_written_bytes, 3 * 4096) << "the unit of 10 of 17 elements";
  options.offload.ratio = 0;
  EXPECT_EQ(rank_plan(three_kinds(), options, 4, kTight).total_bytes(), memory.total_bytes());
}

TEST(Plan, UnitsAreWhereTheirNamesSay) {
  EngineOptions options{.stage = 1};
  options.offload.path = "somewhere";
  options.unit_tiers["2"] = {.optimizer = Tier::Disk};
  const Plan plan = make_plan(three_kinds(), options, {.ranks = 4}, {.splits_master = false}, kTight);
  EXPECT_EQ(plan.units[0].tiers, StateTiers{});
  EXPECT_EQ(plan.units[2].tiers.optimizer, Tier::Disk);
  EXPECT_EQ(plan.rank.tier_bytes[static_cast<size_t>(Tier::Disk)], 2 * 8);
  options.unit_tiers["3"] = {};
  EXPECT_ERROR(make_plan(three_kinds(), options), Config, "no unit of the plan is named \"3\"");
}

TEST(Plan, WhatStaysGatheredIsGatheredOnceAStepBesideTheBudget) {
  const ModuleSpec model = chain({100, 100, 100, 100});
  const auto plan_of = [&](double ratio) {
    return make_plan(model, {.stage = 3, .budget_bytes = 0, .gathered_ratio = ratio}, {.ranks = 2}, {}, 1);
  };
  EXPECT_EQ(plan_of(0).rank.all_gather_elements, 2 * 4 * 100) << "forward and backward";
  EXPECT_EQ(plan_of(0.5).rank.all_gather_elements, 2 * 100 + 2 * 2 * 100);
  EXPECT_EQ(plan_of(1).rank.all_gather_elements, 4 * 100);
  EXPECT_EQ(plan_of(0.5).rank.gather_window_bytes, 2 * 400 + 400);
  EXPECT_TRUE(plan_of(0.5).units[1].persistent);
  EXPECT_FALSE(plan_of(0.5).units[2].persistent);
}

TEST(Plan, SmallParametersStayGatheredUpToATotal) {
  ModuleSpec model = chain({100, 100, 100});
  for (ModuleSpec& unit : model.children)
    unit.parameters.push_back({.name = unit.name + ".bias", .shape = {10}});
  EngineOptions options{.stage = 3, .persistent_numel = 11, .budget_bytes = 0};
  const Plan all = make_plan(model, options, {.ranks = 2}, {}, 1);
  ASSERT_EQ(all.units.size(), 6u);
  EXPECT_EQ(all.units[1].name, "0#persistent");
  EXPECT_EQ(all.rank.all_gather_elements, 2 * 300 + 30);
  options.persistent_total_numel = 25;
  const Plan two = make_plan(model, options, {.ranks = 2}, {}, 1);
  EXPECT_EQ(two.units.size(), 5u);
  EXPECT_EQ(two.rank.all_gather_elements, 2 * 310 + 20);
  options.stage = 2;
  EXPECT_EQ(make_plan(model, options, {.ranks = 2}, {}, 1).units.size(), 3u) << "parameters are replicated";
}

// Of `ranks` that are alone in their shard group there is nothing to gather, but slabs to fill.
TEST(Plan, EverythingOnDiskLeavesWhatPassesThroughMemory) {
  for (const int ranks : {1, 4}) {
    EngineOptions options{.stage = 3, .accumulation_steps = 3};
    const RankPlan memory = rank_plan(three_kinds(), options, ranks, kTight);
    options.tiers = {Tier::Disk, Tier::Disk, Tier::Disk, Tier::Disk};
    options.offload.path = "somewhere";
    options.offload.step_in_backward = StepInBackward::Off;
    const RankPlan disk = rank_plan(three_kinds(), options, ranks, kTight);
    EXPECT_EQ(disk.offloaded_bytes, memory.state_bytes()) << ranks;
    EXPECT_EQ(disk.total_bytes(), disk.ring_bytes + disk.staging_bytes + disk.passing_sum_bytes +
                                      disk.gather_window_bytes + disk.bucket_bytes +
                                      disk.largest_gradient_bytes);
    EXPECT_GT(disk.gather_window_bytes, 0);
    EXPECT_GT(disk.staging_bytes, 0);
    EXPECT_GT(disk.passing_sum_bytes, 0);
    // Sums of three micro-batches are written three times and come back twice, for the norm and for the step.
    EXPECT_GT(disk.step_read_bytes, disk.step_written_bytes);
  }
  EngineOptions replicated{.stage = 2};
  replicated.tiers.parameter = Tier::Disk;
  replicated.offload.path = "somewhere";
  EXPECT_ERROR(make_plan(three_kinds(), replicated, {.ranks = 2}), Unsupported, "choose stage 3");
  EXPECT_EQ(make_plan(three_kinds(), replicated).placements.parameter, Placement::Shard);
  replicated.offload.piece_numel = 1024;
  EXPECT_ERROR(make_plan(three_kinds(), replicated), Config, "offload.piece_numel");
}

TEST(Plan, UnitsThatAreUpdatedInBackwardNeedNoRoomForTheirGradients) {
  constexpr int64_t kNumel = 1 << 20;
  const ModuleSpec model = chain({kNumel, kNumel, kNumel});
  const OptimizerBytes moments{.states = 2, .block_numel = 256, .block_bytes = 8};
  const auto rank_of = [&](StepInBackward how, int micro_batches) {
    EngineOptions options{.stage = 3, .dtype = Dtype::bf16, .accumulation_steps = micro_batches};
    options.tiers = {Tier::Disk, Tier::Disk, Tier::Disk, Tier::Disk};
    options.offload.path = "somewhere";
    options.offload.step_in_backward = how;
    return make_plan(model, options, {.ranks = 2}, moments).rank;
  };
  // Of a rank: parameters, halves of masters, moments in 8 bits with their scales; and gradients.
  constexpr int64_t kOwn = 3 * kNumel / 2, kStates = kOwn * 6 + kOwn / 256 * 8, kSums = kOwn * 4;
  const RankPlan off = rank_of(StepInBackward::Off, 1), on = rank_of(StepInBackward::On, 1),
                 in_place = rank_of(StepInBackward::InPlace, 1);
  EXPECT_EQ(off.file_bytes, kStates + kSums);
  EXPECT_EQ(in_place.file_bytes, kStates);
  EXPECT_EQ(on.file_bytes, 2 * kStates);
  EXPECT_EQ(in_place.ahead_bytes, 0) << "new parameters are on disk as well";
  EXPECT_EQ(in_place.total_bytes(), on.total_bytes());
  EXPECT_EQ(in_place.gradient_bytes, 0);
  EXPECT_EQ(off.step_written_bytes - in_place.step_written_bytes, kSums);
  EXPECT_EQ(off.step_read_bytes - in_place.step_read_bytes, 2 * kSums) << "for the norm and the step";
  // Of three micro-batches two are added up on disk.
  const RankPlan three = rank_of(StepInBackward::InPlace, 3);
  EXPECT_EQ(three.file_bytes, kStates + kSums);
  EXPECT_EQ(three.step_written_bytes - in_place.step_written_bytes, 2 * kSums);
}

TEST(Plan, BadOffloadIsNamed) {
  EngineOptions options;
  options.tiers.optimizer = Tier::Disk;
  EXPECT_ERROR(make_plan(three_kinds(), options), Config, "offload.path");
  options.offload.path = "somewhere";
  options.tiers.master = Tier::Device;
  EXPECT_ERROR(make_plan(three_kinds(), options, {.on_cpu = false}), Unsupported, "keep both in its memory");
  options.tiers.master = options.tiers.optimizer;
  const auto refused = [&](auto set) {
    EngineOptions bad = options;
    set(bad.offload);
    make_plan(three_kinds(), bad);
  };
  EXPECT_ERROR(refused([](auto& o) { o.ratio = -0.1; }), Config,
               "offload.ratio: expected a number from 0 to 1");
  EXPECT_ERROR(refused([](auto& o) { o.buffer_count = 1; }), Config, "offload.buffer_count");
  EXPECT_ERROR(refused([](auto& o) { o.piece_numel = 1500; }), Config, "offload.piece_numel");
  EXPECT_ERROR(refused([](auto& o) { o.block_bytes = 5000; }), Config, "offload.block_bytes");
  EXPECT_ERROR(refused([](auto& o) { o.queue_depth = 0; }), Config, "offload.queue_depth");
  EXPECT_ERROR(refused([](auto& o) { o.threads = 0; }), Config, "offload.threads");
}

TEST(Plan, CountsMomentsInBlocks) {
  const OptimizerBytes eight_bit{.states = 2, .block_numel = 256, .block_bytes = 8};
  const Plan plan = make_plan(three_kinds(), {.stage = 1}, {.ranks = 2}, eight_bit);
  for (const UnitLayout& unit : plan.units) EXPECT_EQ(unit.shard_numel % 256, 0) << unit.name;
  EXPECT_EQ(plan.rank.optimizer_bytes, 2 * (256 * 2 + 8));
  const RankPlaces devices{.ranks = 2, .on_cpu = false};
  EXPECT_EQ(make_plan(three_kinds(), {.stage = 1}, devices, eight_bit).rank.optimizer_bytes,
            2 * (256 * 2 + 8));
}

TEST(Plan, CountsStatesByTheirTier) {
  for (int stage = 0; stage < 4; ++stage) {
    const Plan plan = make_plan(three_kinds(), {.stage = stage, .accumulation_steps = 2}, {.ranks = 4});
    EXPECT_EQ(plan.rank.tier_bytes[static_cast<size_t>(Tier::Device)], plan.rank.state_bytes());
    for (const UnitLayout& unit : plan.units) EXPECT_EQ(unit.tiers, StateTiers{});
  }
  EngineOptions elsewhere;
  elsewhere.tiers.gradient = Tier::Host;
  const RankPlan on_host = make_plan(three_kinds(), elsewhere).rank;
  EXPECT_EQ(on_host.tier_bytes[static_cast<size_t>(Tier::Host)], on_host.gradient_bytes);
  EXPECT_EQ(on_host.offloaded_bytes, 0) << "on CPU it is the same memory";
}

}  // namespace
}  // namespace zero
