// Parameters of a device on the host: the same bits as in the device's memory, and over the host's link the
// bytes that the plan counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "support/disk_directory.h"
#include "support/virtual_training.h"
#include "zero/activations.h"
#include "zero/error.h"
#include "zero/model_spec.h"
#include "zero/tier_plan.h"

namespace zero::virtual_device::testing {
namespace {

/// Parameters away, and all else too if `everything`.
EngineOptions with_parameters_in(Tier tier, EngineOptions options, bool everything, const fs::path& path) {
  if (everything) {
    options = offloaded(std::move(options), tier, path);
    options.tiers.gradient = tier;
  } else {
    options = offloaded(std::move(options), Tier::Device, path);
  }
  options.tiers.parameter = tier;
  options.offload.piece_numel = 2048;
  return options;
}

class VirtualParameters : public ::testing::TestWithParam<std::tuple<int, Tier>> {};

TEST_P(VirtualParameters, AwayChangeNoBit) {
  const DiskDirectory folder;
  const auto [ranks, tier] = GetParam();
  run_ranks(
      ranks,
      [&, tier = tier](const Mesh& mesh) {
        for (const bool everything : {false, true})
          for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
            const std::string what =
                std::string(everything ? "everything, " : "parameters, ") + std::string(to_string(dtype));
            const fs::path place = folder.path() / what;
            EngineOptions options{
                .stage = 3, .dtype = dtype, .accumulation_steps = 2, .gradient_clipping = 0.5};
            options.group_numel = 200;
            options.budget_bytes = 30000;
            const EngineOptions other = with_parameters_in(tier, options, everything, folder.path());
            Trained memory(mesh, AdamW{.lr = 1e-2}, options);
            Trained away(mesh, AdamW{.lr = 1e-2}, other);
            memory.steps(0, 3);
            away.steps(0, 3);
            const fs::path one = memory.engine.save(place / "memory"), two = away.engine.save(place / "away");
            expect_same(mesh, one, two, what);

            // Either goes on from what the other has saved.
            Trained resumed(mesh, AdamW{.lr = 1e-2}, other);
            resumed.engine.load(one);
            resumed.steps(3, 4);
            memory.engine.load(two);
            memory.steps(3, 4);
            const fs::path after = memory.engine.save(place / "memory");
            expect_same(mesh, after, resumed.engine.save(place / "resumed"), what + ", resumed");
            expect_no_faults();
          }
      },
      on_virtual_devices());
}

INSTANTIATE_TEST_SUITE_P(RanksAndTiers, VirtualParameters,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(Tier::Host, Tier::Disk)));

struct ParameterWay {
  std::string name;
  OptimizerSpec rule = AdamW{.lr = 1e-2};
  EngineOptions options = {.stage = 3, .dtype = Dtype::bf16};
  bool everything = true;
  std::function<void(EngineOptions&)> set = [](EngineOptions&) {};  // of the one with parameters away
};

std::vector<ParameterWay> parameter_ways() {
  const EngineOptions bf16{.stage = 3, .dtype = Dtype::bf16};
  EngineOptions whole_masters = bf16, no_overlap = bf16, small = bf16, groups = bf16, no_prefetch = bf16;
  whole_masters.split_master = false;
  no_overlap.overlap = false;
  small.budget_bytes = 0;
  no_prefetch.prefetch_bytes = 0;
  groups.shard_group_ranks = 1;
  groups.accumulation_steps = 2;
  EngineOptions f16{.stage = 3, .dtype = Dtype::f16};
  f16.loss_scaling.emplace();
  const AdamW adam{.lr = 1e-2};
  const LAMB lamb{.lr = 1e-2};
  const auto a_part = [](EngineOptions& options) {
    options.offload.parameter_ratio = 0.5;
    options.offload.ratio = 0.7;
  };
  const auto pageable = [](EngineOptions& options) { options.offload.pin_memory = false; };
  return {{"whole masters", adam, whole_masters},
          {"whole masters of the device", adam, whole_masters, false},
          {"no overlap", adam, no_overlap},
          {"one slab at a time", adam, small},
          {"on demand", adam, no_prefetch},
          {"replicas", adam, groups},
          {"replicas of the device", adam, groups, false},
          {"fp16", adam, f16},
          {"LAMB", lamb, bf16},
          {"LAMB of the device", lamb, bf16, false},
          {"SGD", SGD{.lr = 1e-2, .momentum = 0.9}, bf16},
          {"in part", adam, bf16, true, a_part},
          {"LAMB in part", lamb, bf16, true, a_part},
          {"pageable", adam, bf16, true, pageable}};
}

TEST(VirtualParametersAway, GiveTheSameBitsInEveryWay) {
  const TemporaryDirectory folder;
  run_ranks(
      2,
      [&](const Mesh& mesh) {
        for (const ParameterWay& way : parameter_ways()) {
          EngineOptions other = with_parameters_in(Tier::Host, way.options, way.everything, {});
          way.set(other);
          Trained memory(mesh, way.rule, way.options);
          Trained host(mesh, way.rule, other);
          memory.steps(0, 3);
          host.steps(0, 3);
          expect_same(mesh, memory.engine.save(folder.path() / (way.name + ", memory")),
                      host.engine.save(folder.path() / way.name), way.name);
          expect_no_faults();
        }
      },
      on_virtual_devices());
}

/// What passed the link in a step in the steady state.
struct Moved {
  double in = 0, out = 0;
};
Moved moved_in_a_step(Trained& trained) {
  trained.steps(0, 3);
  own_devices().synchronize();
  const DeviceReport before = own_devices().report();
  trained.steps(3, 4);
  own_devices().synchronize();
  const DeviceReport after = own_devices().report();
  return {after.copied_in_bytes - before.copied_in_bytes, after.copied_out_bytes - before.copied_out_bytes};
}

TEST(VirtualParametersAway, MoveWhatThePlanCounts) {
  for (const int ranks : {1, 2})
    run_ranks(
        ranks,
        [](const Mesh& mesh) {
          for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
            for (const int micro_batches : {1, 2})
              for (const bool everything : {true, false}) {
                EngineOptions options{.stage = 3, .dtype = dtype, .accumulation_steps = micro_batches};
                options.budget_bytes = 1 << 20;  // the tied embedding is gathered no more often than others
                EngineOptions other = with_parameters_in(Tier::Host, options, everything, {});
                Trained memory(mesh, AdamW{.lr = 1e-2}, options);
                Trained host(mesh, AdamW{.lr = 1e-2}, other);
                const Moved without = moved_in_a_step(memory), with = moved_in_a_step(host);
                const RankPlan& plan = host.engine.plan().rank;
                // Batches and results go too; and where the CPU updates, no table of scalars comes.
                constexpr double kSmall = 4 << 10;
                EXPECT_NEAR(with.in - without.in, static_cast<double>(plan.step_up_bytes), kSmall)
                    << to_string(dtype) << ", " << micro_batches << ", " << everything;
                EXPECT_NEAR(with.out - without.out, static_cast<double>(plan.step_down_bytes), kSmall)
                    << to_string(dtype) << ", " << micro_batches << ", " << everything;
                EXPECT_GT(plan.step_up_bytes, 4 * kSmall) << "otherwise it says nothing";
                expect_no_faults();
              }
        },
        on_virtual_devices());
}

int64_t peak_of_steps(Trained& trained) {
  trained.steps(0, 2);
  own_devices().synchronize();
  own_devices().reset_peaks();
  const int64_t before = own_devices().report().used_bytes;
  trained.steps(2, 4);
  own_devices().synchronize();
  const DeviceReport report = own_devices().report();
  EXPECT_EQ(report.used_bytes, before) << "nothing adds up";
  return report.peak_bytes;
}

// The device has what is left by the plan, and what passes: slabs, and sums on their way.
TEST(VirtualParametersAway, LeaveTheDeviceWhatThePlanCounts) {
  for (const int ranks : {1, 2})
    run_ranks(
        ranks,
        [](const Mesh& mesh) {
          EngineOptions options{.stage = 3, .dtype = Dtype::bf16};
          options.budget_bytes = 0;
          const auto measured = [&](const EngineOptions& of, RankPlan& plan) {
            Trained trained(mesh, AdamW{.lr = 1e-2}, of);
            plan = trained.engine.plan().rank;
            const int64_t peak = peak_of_steps(trained);
            const auto used = own_devices().report().used_by_purpose;
            const bool all_left = plan.offloaded_bytes == plan.state_bytes();
            for (const char* purpose : {"shards", "master", "optimizer states", "parameters"}) {
              if (all_left) {
                EXPECT_FALSE(used.contains(purpose)) << purpose;
              }
            }
            return peak;
          };
          RankPlan here, host;
          const int64_t peak_here = measured(options, here);
          const int64_t peak_host = measured(with_parameters_in(Tier::Host, options, true, {}), host);
          EXPECT_EQ(host.offloaded_bytes, host.state_bytes());
          const int64_t left = here.state_bytes() - here.gradient_bytes;
          const int64_t came = host.gather_window_bytes - here.gather_window_bytes + host.passing_sum_bytes;
          constexpr int64_t kBlocks = 64 * 512;  // what blocks of a device are larger
          EXPECT_LE(peak_host, peak_here - left + came + kBlocks);
          EXPECT_GT(left, came + kBlocks) << "otherwise it says nothing";
        },
        on_virtual_devices());
}

// A placement that "auto" finds where little fits, with parameters away.
TEST(VirtualParametersAway, WhatAutoChoosesTrainsTheSame) {
  const DiskDirectory folder;
  for (const int ranks : {1, 2})
    run_ranks(
        ranks,
        [&](const Mesh& mesh) {
          EngineOptions options{.stage = 3, .dtype = Dtype::bf16};
          options.reduce_bucket_numel = 4096;
          options.offload.path = folder.path();
          options.offload.piece_numel = 2048;
          options.offload.block_bytes = 4096;
          const RankPlaces places{.ranks = mesh.size(), .on_cpu = false};
          const ModuleSpec spec = module_spec(*Trained::made(false));
          const int64_t whole = peak_bytes(make_plan(spec, options, places), {});
          TierRequest request{
              .movable = {.parameter = true, .gradient = true, .master = true, .optimizer = true}};
          Trained memory(mesh, AdamW{.lr = 1e-2}, options);
          memory.steps(0, 3);
          const std::string name = std::to_string(mesh.size());
          const fs::path saved = memory.engine.save(folder.path() / name);
          bool some_away = false;
          for (int tenths = 9; tenths >= 1; --tenths) {
            request.memory_bytes = whole * tenths / 10;
            EngineOptions chosen = options;
            try {
              use_tiers(chosen, choose_tiers(spec, options, places, {}, request));
            } catch (const Error&) {
              break;  // less than the least
            }
            Trained placed(mesh, AdamW{.lr = 1e-2}, chosen);
            const Plan& plan = placed.engine.plan();
            EXPECT_LE(peak_bytes(plan, {}), request.memory_bytes);
            for (const UnitLayout& unit : plan.units) some_away = some_away || plan.is_away(unit);
            placed.steps(0, 3);
            const std::string tenth = name + ", " + std::to_string(tenths) + " tenths";
            expect_same(mesh, saved, placed.engine.save(folder.path() / tenth), tenth);
            expect_no_faults();
          }
          EXPECT_TRUE(some_away);
        },
        on_virtual_devices());
}

/// Values that are written by hand, and frozen ones, come and go as well.
TEST(VirtualParametersAway, TakeWhatScopesWrite) {
  const TemporaryDirectory folder;
  run_ranks(
      2,
      [&](const Mesh& mesh) {
        fs::path before;
        for (const bool away : {false, true}) {
          EngineOptions options{.stage = 3, .dtype = Dtype::bf16, .gradient_clipping = 0.5};
          options.budget_bytes = 0;
          if (away) options = with_parameters_in(Tier::Host, options, true, {});
          Trained trained(mesh, AdamW{.lr = 1e-2}, options, /*freezes=*/true);
          trained.steps(0, 2);
          {
            GatherScope scope(trained.engine, Access::Modify);
            const torch::NoGradGuard no_grad;
            if (mesh.rank() == 0) {
              trained.model->norm->bias.add_(1);
              trained.model->norm->weight.set_data(torch::ones_like(trained.model->norm->weight));
            }
            scope.broadcast(0);
          }
          trained.steps(2, 3);
          const fs::path saved = trained.engine.save(folder.path() / (away ? "away" : "here"));
          if (away) expect_same(mesh, before, saved, "written and frozen");
          before = saved;
          expect_no_faults();
        }
      },
      on_virtual_devices());
}

}  // namespace
}  // namespace zero::virtual_device::testing
