#include "zero/tier_plan.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "support/expect_error.h"

namespace zero {
namespace {

/// A list of units of these sizes.
ModuleSpec chain_of_units(const std::vector<int64_t>& sizes) {
  ModuleSpec list{.name = "h", .is_list = true, .parameters = {}, .children = {}};
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = "h." + std::to_string(i);
    list.children.push_back(
        {.name = name, .parameters = {{.name = name + ".w", .shape = {sizes[i]}}}, .children = {}});
  }
  return {.name = "", .parameters = {}, .children = {list}};
}

struct TierCase {
  ModuleSpec model;
  EngineOptions options;
  RankPlaces places;
  OptimizerBytes optimizer;
  TierRequest request;
  bool moves_all = false;  // parameters and gradients too
};

TierCase random_tier_case(std::mt19937_64& random, bool moves_all) {
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  std::vector<int64_t> sizes;
  for (int64_t i = pick(1, moves_all ? 2 : 4); i > 0; --i) sizes.push_back(pick(1, 4) * 5000);
  TierCase one;
  one.moves_all = moves_all;
  one.model = chain_of_units(sizes);
  one.options.stage = static_cast<int>(pick(0, 3));
  one.options.dtype = pick(0, 1) ? Dtype::bf16 : Dtype::f32;
  one.options.accumulation_steps = static_cast<int>(pick(1, 2));
  one.options.reduce_bucket_numel = 1024;
  one.options.offload = {.path = "/disk", .buffer_count = 2, .piece_numel = 2048 * pick(1, 4)};
  one.options.offload.step_in_backward = StepInBackward::Off;  // as the planner has it
  one.places = {.ranks = static_cast<int>(pick(1, 2))};
  one.optimizer.states = 4 * pick(0, 2);
  one.request.movable = {.parameter = moves_all, .gradient = moves_all, .master = true, .optimizer = true};
  one.request.activations = {.kept = pick(0, 50'000), .loss = 1000, .again = 0};
  one.request.rates = {.disk_read = 2e9, .disk_write = 1e9};
  const Plan plan = make_plan(one.model, one.options, one.places, one.optimizer);
  const int64_t peak = peak_bytes(plan, one.request.activations);
  one.request.memory_bytes = pick(peak / 2, peak + 1000);
  if (pick(0, 2) == 0) one.request.disk_bytes = pick(0, peak);
  return one;
}

/// The least seconds of all placements that fit, by trying them.
std::optional<double> least_seconds(const TierCase& one, const Plan& plan, size_t unit,
                                    EngineOptions& options) {
  if (unit == plan.units.size()) {
    const Plan made = make_plan(one.model, options, one.places, one.optimizer);
    if (peak_bytes(made, one.request.activations) > one.request.memory_bytes) return std::nullopt;
    if (made.rank.file_bytes > one.request.disk_bytes) return std::nullopt;
    return tier_traffic(made).seconds(one.request.rates);
  }
  const std::vector<Tier> both{Tier::Device, Tier::Disk}, near{Tier::Device};
  const bool is_sharded = plan.placements.parameter == Placement::Shard;
  std::optional<double> best;
  for (const Tier parameter : one.moves_all&& is_sharded ? both : near)
    for (const Tier gradient : one.moves_all ? both : near)
      for (const Tier master : both)
        for (const Tier states : both) {
          options.unit_tiers[plan.units[unit].name] = {
              .parameter = parameter, .gradient = gradient, .master = master, .optimizer = states};
          const auto found = least_seconds(one, plan, unit + 1, options);
          if (found && (!best || *found < *best)) best = found;
        }
  return best;
}

std::optional<double> least_seconds(const TierCase& one) {
  std::optional<double> best;
  // The usual slabs where they do, one at a time where nothing else does.
  for (const int64_t budget : {int64_t{-1}, int64_t{0}}) {
    EngineOptions options = one.options;
    options.budget_bytes = budget;
    const Plan plan = make_plan(one.model, options, one.places, one.optimizer);
    best = least_seconds(one, plan, 0, options);
    if (best) return best;
  }
  return best;
}

TEST(TierPlan, FindsAPlacementWheneverThereIsOneAndTheCheapest) {
  std::mt19937_64 random(22);
  int possible = 0, impossible = 0, moved = 0;
  for (int i = 0; i < 300; ++i) {
    const TierCase one = random_tier_case(random, /*moves_all=*/i % 2 == 0);
    const std::optional<double> best = least_seconds(one);
    std::optional<TierPlan> chosen;
    try {
      chosen = choose_tiers(one.model, one.options, one.places, one.optimizer, one.request);
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::Config) << error.what();
    }
    EXPECT_EQ(chosen.has_value(), best.has_value())
        << "case " << i << " stage " << one.options.stage << " ranks " << one.places.ranks << " all "
        << one.moves_all;
    ++(best ? possible : impossible);
    if (!best || !chosen) continue;
    EXPECT_LE(chosen->peak_bytes, one.request.memory_bytes);
    EXPECT_LE(chosen->disk_bytes, one.request.disk_bytes);
    EXPECT_LE(chosen->seconds, *best * 1.03) << "case " << i;
    if (chosen->disk_bytes > 0) ++moved;
  }
  EXPECT_GT(possible, 50);
  EXPECT_GT(impossible, 10);
  EXPECT_GT(moved, 15);
}

// More placements than are tried one by one: what is found costs what the cheapest
// costs, to a few percent.
TEST(TierPlan, ManyPlacementsAreSearchedWell) {
  std::mt19937_64 random(23);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  int possible = 0;
  for (int i = 0; i < 24; ++i) {
    TierCase one = random_tier_case(random, /*moves_all=*/false);
    one.moves_all = i % 2 == 0;
    std::vector<int64_t> sizes;
    for (int64_t units = one.moves_all ? 3 : 6; units > 0; --units) sizes.push_back(pick(1, 6) * 500'000);
    one.model = chain_of_units(sizes);
    one.optimizer.states = 8;
    one.request.movable.parameter = one.request.movable.gradient = one.moves_all;
    one.options.reduce_bucket_numel = 1 << 20;
    one.request.activations.kept = pick(0, 10'000'000);
    const Plan plan = make_plan(one.model, one.options, one.places, one.optimizer);
    const int64_t peak = peak_bytes(plan, one.request.activations);
    one.request.memory_bytes = pick(peak / 3, peak);
    one.request.disk_bytes = INT64_MAX;
    const std::optional<double> best = least_seconds(one);
    if (!best) continue;
    ++possible;
    const TierPlan chosen = choose_tiers(one.model, one.options, one.places, one.optimizer, one.request);
    EXPECT_LE(chosen.peak_bytes, one.request.memory_bytes) << "case " << i;
    EXPECT_LE(chosen.seconds, *best * 1.03) << "case " << i;
  }
  EXPECT_GT(possible, 10);
}

TEST(TierPlan, ManyUnitsCostLittleMoreThanTheBytesThatMustGo) {
  const ModuleSpec model = chain_of_units(std::vector<int64_t>(60, 1'000'000));
  EngineOptions options{.stage = 2, .dtype = Dtype::bf16};
  options.offload.path = "/disk";
  options.offload.piece_numel = 1 << 16;
  const Plan all = make_plan(model, options);
  TierRequest request{.movable = {.master = true, .optimizer = true},
                      .memory_bytes = peak_bytes(all, {}) / 2};
  const TierPlan chosen = choose_tiers(model, options, {}, {}, request);
  EXPECT_LE(chosen.peak_bytes, request.memory_bytes);
  // What must leave memory at the least, with the buffers that come for it.
  const int64_t least = peak_bytes(all, {}) - request.memory_bytes + chosen.plan.rank.ring_bytes;
  EXPECT_GE(chosen.traffic.disk_read_bytes, least);
  EXPECT_LE(static_cast<double>(chosen.traffic.disk_read_bytes), 1.05 * static_cast<double>(least));
  EXPECT_EQ(chosen.traffic.disk_read_bytes, chosen.traffic.disk_written_bytes);
}

TEST(TierPlan, SaysWhatItChoseAndWhy) {
  const ModuleSpec model = chain_of_units({100'000, 100'000, 100'000, 100'000});
  EngineOptions options{.stage = 1, .dtype = Dtype::bf16};
  options.offload.path = "/disk";
  options.offload.piece_numel = 1024;
  TierRequest request{.movable = {.master = true, .optimizer = true}, .memory_bytes = 10'000'000};
  const TierPlan all = choose_tiers(model, options, {}, {}, request);
  EXPECT_NE(all.explained.find("Everything fits, so nothing is moved."), std::string::npos) << all.explained;
  EXPECT_EQ(all.disk_bytes, 0);
  request.memory_bytes = all.peak_bytes - 1'000'000;
  const TierPlan some = choose_tiers(model, options, {}, {}, request);
  for (const char* words : {"On disk: ", "optimizer states", "of 4 units", "A step reads", "1.00 GB/s"})
    EXPECT_NE(some.explained.find(words), std::string::npos) << words << " in: " << some.explained;
}

TEST(TierPlan, PiecesBecomeWholeBlocksOfADiskWhereParametersOrGradientsMayGoThere) {
  const ModuleSpec model = chain_of_units({100'000, 100'000, 100'000, 100'000});
  EngineOptions options{.stage = 3, .dtype = Dtype::bf16};
  options.offload.path = "/disk";
  options.offload.piece_numel = 3072;
  TierRequest request{.movable = {.parameter = true, .gradient = true, .master = true, .optimizer = true},
                      .memory_bytes = peak_bytes(make_plan(model, options), {}) * 7 / 10};
  const TierPlan chosen = choose_tiers(model, options, {}, {}, request);
  EXPECT_EQ(chosen.piece_numel, 4096);
  EXPECT_GT(chosen.disk_bytes, 0);
}

TEST(TierPlan, BesideADeviceStatesGoToTheHostBeforeTheDisk) {
  const ModuleSpec model = chain_of_units({100'000, 100'000, 100'000, 100'000});
  const RankPlaces device{.on_cpu = false};
  for (const Dtype dtype : {Dtype::bf16, Dtype::f32}) {
    EngineOptions options{.stage = 1, .dtype = dtype};
    options.offload.path = "/disk";
    options.offload.piece_numel = 1024;
    const int64_t peak = peak_bytes(make_plan(model, options, device), {});
    TierRequest request{.movable = {.gradient = true, .master = true, .optimizer = true},
                        .memory_bytes = peak * 6 / 10};
    const TierPlan host = choose_tiers(model, options, device, {}, request);
    EXPECT_LE(host.peak_bytes, request.memory_bytes);
    EXPECT_GT(host.host_bytes, 0);
    EXPECT_EQ(host.disk_bytes, 0) << host.explained;
    EXPECT_NE(host.explained.find("On the host: "), std::string::npos) << host.explained;
    // Half of that room: the rest is on the disk.
    request.host_bytes = host.host_bytes / 2;
    const TierPlan both = choose_tiers(model, options, device, {}, request);
    EXPECT_LE(both.host_bytes, request.host_bytes);
    EXPECT_GT(both.disk_bytes, 0);
    EXPECT_GT(both.seconds, host.seconds);
  }
}

/// The bytes that an error says are needed.
int64_t needed_bytes(const std::string& text) {
  const size_t begin = text.find(" bytes) are needed");
  const size_t open = text.rfind('(', begin);
  return begin == text.npos || open == text.npos ? 0 : std::stoll(text.substr(open + 1));
}

// With two ranks parameters lie in memory that both share, or each has its own part and slabs: what takes
// less is named, and whatever was tried before.
TEST(TierPlan, WhatCannotFitNamesTheLeastThatWould) {
  for (const auto& [ranks, units] : {std::pair{1, 1}, {1, 12}, {2, 5}}) {
    const ModuleSpec model = chain_of_units(std::vector<int64_t>(static_cast<size_t>(units), 100'000));
    const RankPlaces places{.ranks = ranks};
    EngineOptions options{.stage = ranks == 1 ? 1 : 3};
    TierRequest request{.movable = {.parameter = ranks > 1, .gradient = true, .optimizer = true},
                        .memory_bytes = 100'000};
    EXPECT_ERROR(choose_tiers(model, options, places, {}, request), Config,
                 "offload.memory: a rank's memory is 100 kB, but wherever states are, ");
    options.offload.path = "/disk";
    options.offload.piece_numel = 2048;
    try {
      choose_tiers(model, options, places, {}, request);
      ADD_FAILURE() << "100 kB are enough";
    } catch (const Error& error) {
      request.memory_bytes = needed_bytes(error.what());
    }
    ASSERT_GT(request.memory_bytes, 100'000);
    EXPECT_NO_THROW(choose_tiers(model, options, places, {}, request)) << units;
    request.disk_bytes = 1000;
    EXPECT_ERROR(choose_tiers(model, options, places, {}, request), Config, "offload.disk_space: ");
    request.disk_bytes = INT64_MAX;
    --request.memory_bytes;
    EXPECT_ERROR(choose_tiers(model, options, places, {}, request), Config, "are needed: ");
    request.memory_bytes = 0;
    EXPECT_ERROR(choose_tiers(model, options, places, {}, request), Config,
                 "offload.memory: expected more than 0");
  }
}

}  // namespace
}  // namespace zero
