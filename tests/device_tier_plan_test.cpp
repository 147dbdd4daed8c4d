// Tiers of ranks on devices: what passes the host's link, and that a placement is found wherever there is
// one.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/expect_error.h"
#include "zero/tier_plan.h"

namespace zero {
namespace {

ModuleSpec four_units() {
  ModuleSpec list{.name = "h", .is_list = true, .parameters = {}, .children = {}};
  for (int i = 0; i < 4; ++i) {
    const std::string name = "h." + std::to_string(i);
    list.children.push_back(
        {.name = name, .parameters = {{.name = name + ".w", .shape = {100'000}}}, .children = {}});
  }
  return {.name = "", .parameters = {}, .children = {list}};
}

RankPlaces devices(int ranks) { return {.ranks = ranks, .on_cpu = false}; }

EngineOptions all_in(Tier tier, EngineOptions options) {
  options.tiers = {.parameter = tier, .gradient = tier, .master = tier, .optimizer = tier};
  options.offload.path = "/disk";
  options.offload.piece_numel = 2048;
  return options;
}

TEST(DeviceTierPlan, CountsWhatPassesTheLink) {
  constexpr int64_t kSumBytes = 4, kBf16Bytes = 2;
  for (const int64_t micro_batches : {1, 3})
    for (const int ranks : {1, 2}) {
      EngineOptions options{.stage = 3, .dtype = Dtype::bf16};
      options.accumulation_steps = static_cast<int>(micro_batches);
      options.budget_bytes = 0;
      const ModuleSpec model = four_units();
      EXPECT_EQ(make_plan(model, options, devices(ranks)).rank.step_up_bytes, 0);
      const Plan host = make_plan(model, all_in(Tier::Host, options), devices(ranks));
      const int64_t shards = 4 * host.units[0].shard_numel;
      // Each unit forward and backward.
      const int64_t gathers = 8 * micro_batches;
      EXPECT_EQ(host.rank.step_up_bytes,
                gathers * host.units[0].shard_numel * kBf16Bytes + (micro_batches - 1) * shards * kSumBytes);
      EXPECT_EQ(host.rank.step_down_bytes, micro_batches * shards * kSumBytes);
      EXPECT_EQ(host.rank.host_bytes - host.rank.tier_bytes[static_cast<size_t>(Tier::Host)], 0)
          << "nothing of a unit passes through memory of its own";
      // Those on a disk pass the host.
      const Plan disk = make_plan(model, all_in(Tier::Disk, options), devices(ranks));
      EXPECT_EQ(disk.rank.step_up_bytes, host.rank.step_up_bytes);
      EXPECT_EQ(disk.rank.step_down_bytes, host.rank.step_down_bytes);
      EXPECT_EQ(disk.rank.host_bytes, disk.rank.ring_bytes + disk.rank.staging_bytes);
      // On a CPU there is no link.
      EXPECT_EQ(make_plan(model, all_in(Tier::Host, options), {.ranks = ranks}).rank.step_up_bytes, 0);
    }
}

TEST(DeviceTierPlan, StatesAloneMoveSumsAndParameters) {
  EngineOptions options{.stage = 2, .dtype = Dtype::bf16};
  options.tiers.master = options.tiers.optimizer = Tier::Host;
  const Plan split = make_plan(four_units(), options, devices(2));
  const int64_t shards = 4 * split.units[0].shard_numel;
  EXPECT_EQ(split.rank.step_down_bytes, shards * (4 + 2));
  EXPECT_EQ(split.rank.step_up_bytes, shards * 2);
  options.split_master = false;
  EXPECT_EQ(make_plan(four_units(), options, devices(2)).rank.step_down_bytes, shards * 4)
      << "beside a whole master the parameter is written only";
}

TEST(DeviceTierPlan, ParametersOfReplicatingRanksStay) {
  EXPECT_ERROR(make_plan(four_units(), all_in(Tier::Host, {.stage = 2}), devices(2)), Unsupported,
               "choose stage 3");
  EXPECT_EQ(make_plan(four_units(), all_in(Tier::Host, {.stage = 2}), devices(1)).placements.parameter,
            Placement::Shard);
}

// From all the memory that the run would take down to the least that any placement takes.
TEST(DeviceTierPlan, APlacementIsFoundWhereverThereIsOne) {
  const ModuleSpec model = four_units();
  for (const int ranks : {1, 2})
    for (const Tier only : {Tier::Host, Tier::Disk}) {
      EngineOptions options{.stage = 3, .dtype = Dtype::bf16};
      options.reduce_bucket_numel = 20'000;
      options.offload.path = "/disk";
      options.offload.piece_numel = 2048;
      EngineOptions least = all_in(only, options);
      least.budget_bytes = 0;
      const int64_t most_bytes = peak_bytes(make_plan(model, options, devices(ranks)), {}),
                    least_bytes = peak_bytes(make_plan(model, least, devices(ranks)), {});
      ASSERT_LT(least_bytes, most_bytes * 3 / 4);
      TierRequest request{
          .movable = {.parameter = true, .gradient = true, .master = true, .optimizer = true}};
      if (only == Tier::Disk) request.host_bytes = least_bytes;  // for buffers
      if (only == Tier::Host) request.disk_bytes = 0;
      double seconds = 0;
      for (const int64_t memory : {most_bytes, (most_bytes + least_bytes) / 2, least_bytes}) {
        request.memory_bytes = memory;
        const TierPlan chosen = choose_tiers(model, options, devices(ranks), {}, request);
        EXPECT_LE(chosen.peak_bytes, memory);
        EXPECT_LE(chosen.host_bytes, request.host_bytes);
        EXPECT_GE(chosen.seconds, seconds);
        EXPECT_EQ(chosen.traffic.host_bytes,
                  chosen.plan.rank.step_up_bytes + chosen.plan.rank.step_down_bytes);
        seconds = chosen.seconds;
        const bool some_away = std::any_of(chosen.plan.units.begin(), chosen.plan.units.end(),
                                           [&](const UnitLayout& unit) { return chosen.plan.is_away(unit); });
        if (memory == least_bytes) {
          EXPECT_TRUE(some_away) << chosen.explained;
        }
      }
    }
}

}  // namespace
}  // namespace zero
