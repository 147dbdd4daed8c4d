// What the engine holds on a device, by purpose: as the plan says, to the byte.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "support/small_net.h"
#include "support/virtual_ranks.h"
#include "zero/engine.h"

namespace zero::virtual_device::testing {
namespace {

using namespace zero::testing;
using torch::Tensor;

constexpr int64_t kBlockBytes = 512;  // what a device gives at least

/// The sum over units of what a rank takes for each, in whole blocks; and in bytes, which is what the plan
/// counts.
struct Expected {
  int64_t taken = 0, planned = 0;
};
Expected over_units(const Plan& plan, const std::function<int64_t(const UnitLayout&)>& bytes_of) {
  Expected sum;
  for (const UnitLayout& unit : plan.units) {
    sum.taken += (bytes_of(unit) + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    sum.planned += bytes_of(unit);
  }
  return sum;
}

void expect_states_as_planned(const Plan& plan, std::map<std::string, int64_t> used) {
  const bool is_cut = plan.placements.parameter == Placement::Shard && plan.shard_ranks > 1;
  const Expected parameters = over_units(plan, [&](const UnitLayout& unit) {
    return is_cut ? unit.shard_numel * itemsize(unit.dtype) : unit.slab_bytes();
  });
  EXPECT_EQ(parameters.planned, plan.rank.parameter_bytes);
  EXPECT_EQ(used[is_cut ? "shards" : "parameters"], parameters.taken);
  const Expected master = over_units(
      plan, [&](const UnitLayout& unit) { return unit.shard_numel * plan.state.bf16_master_bytes; });
  EXPECT_EQ(master.planned, plan.rank.master_bytes);
  EXPECT_EQ(used["master"], master.taken);
  const Expected moment = over_units(plan, [](const UnitLayout& unit) { return unit.shard_numel * 4; });
  EXPECT_EQ(2 * moment.planned, plan.rank.optimizer_bytes);
  EXPECT_EQ(used["optimizer states"], 2 * moment.taken);
}

void expect_gradients_as_planned(const Plan& plan, std::map<std::string, int64_t> used) {
  const bool is_partial =
      plan.placements.gradient == Placement::Partial && plan.accumulation_steps > 1 && plan.ranks > 1;
  const Expected sums = over_units(plan, [&](const UnitLayout& unit) {
    return (is_partial ? unit.padded_numel : unit.shard_numel) * plan.state.gradient_bytes;
  });
  EXPECT_EQ(sums.planned, plan.rank.gradient_bytes);
  EXPECT_EQ(used["gradients"], sums.taken);
}

void train_and_compare(const Mesh& mesh, EngineOptions options) {
  VirtualDevices& devices = own_devices();
  torch::manual_seed(7);
  SmallNet model;
  options.dtype = Dtype::bf16;
  options.cpu_operators = false;
  Engine engine(*model, AdamW{}, options, mesh);
  const Plan& plan = engine.plan();
  EXPECT_EQ(devices.report().used_by_purpose["gradients"], 0) << "none before the first";
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < options.accumulation_steps; ++i) {
      const Batch batch = batch_of(step, 2);
      const Tensor tokens = batch.tokens.to(mesh.device()), targets = batch.targets.to(mesh.device());
      devices.reset_peaks();
      engine.backward(engine.forward([&] { return model->loss(tokens, targets); }));
      auto peak = devices.report().peak_by_purpose;
      EXPECT_GT(peak["activations"], 0);
      EXPECT_LE(peak["buckets"], plan.rank.bucket_bytes + 8 * kBlockBytes);
      const int64_t whole_bytes = plan.placements.parameter == Placement::Shard
                                      ? plan.rank.gather_window_bytes
                                      : plan.rank.parameter_bytes;
      EXPECT_LE(peak["parameters"], whole_bytes + static_cast<int64_t>(plan.units.size()) * kBlockBytes);
    }
    expect_gradients_as_planned(plan, devices.report().used_by_purpose);
    engine.step();
    const auto used = devices.report().used_by_purpose;
    expect_states_as_planned(plan, used);
    EXPECT_FALSE(used.contains("gradients"));
    EXPECT_FALSE(used.contains("activations"));
  }
  expect_no_faults();
}

class VirtualPurposes : public ::testing::TestWithParam<int> {};

TEST_P(VirtualPurposes, AreThePlansFigures) {
  EngineOptions options;
  options.stage = GetParam();
  run_ranks(
      2, [&](Mesh mesh) { train_and_compare(mesh, options); }, on_virtual_devices());
}

TEST_P(VirtualPurposes, AreThePlansFiguresWithAccumulation) {
  EngineOptions options;
  options.stage = GetParam();
  options.accumulation_steps = 2;
  run_ranks(
      2, [&](Mesh mesh) { train_and_compare(mesh, options); }, on_virtual_devices());
}

INSTANTIATE_TEST_SUITE_P(Stages, VirtualPurposes, ::testing::Range(0, 4));

TEST(VirtualEngineMemory, OutOfMemoryTellsWhatTheEngineHolds) {
  run_ranks(
      2,
      [](Mesh mesh) {
        SmallNet model(29, 64);
        EngineOptions options{.stage = 3, .dtype = Dtype::bf16};
        Engine engine(*model, AdamW{}, options, mesh);
        std::string text;
        try {
          at::empty({1 << 30}, at::TensorOptions(mesh.device()));
        } catch (const c10::OutOfMemoryError& error) {
          text = error.what_without_backtrace();
        }
        auto used = own_devices().report().used_by_purpose;
        EXPECT_GT(used["shards"], 0);
        for (const char* purpose : {"optimizer states", "master", "shards"}) {
          const std::string part = std::string(purpose) + " " + std::to_string(used[purpose]) + " bytes";
          EXPECT_NE(text.find(part), std::string::npos) << "no " << part << " in " << text;
        }
      },
      on_virtual_devices());
}

}  // namespace
}  // namespace zero::virtual_device::testing
