// The engine on virtual devices: every stage has the CPU's bits, no race and no host access, and gathers are
// hidden behind computing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "support/device_training.h"
#include "support/virtual_ranks.h"
#include "zero/engine.h"
#include "zero/lazy.h"

namespace zero::virtual_device::testing {
namespace {

using namespace zero::testing;
using torch::Tensor;

const AdamW kAdamW{.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
void expect_same_bits(int ranks, const OptimizerSpec& spec, const EngineOptions& options) {
  const auto host = run_ranks(ranks, [&](Mesh mesh) { train_small_net(mesh, spec, options); });
  const auto device = run_ranks(
      ranks,
      [&](Mesh mesh) {
        own_devices();
        train_small_net(mesh, spec, options);
        expect_no_faults();
      },
      on_virtual_devices());
  expect_same_results(host, device);
}

class VirtualEngineRanks : public ::testing::TestWithParam<int> {};

TEST_P(VirtualEngineRanks, HasTheCpusBits) {
  EngineOptions options;
  options.stage = GetParam();
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(std::to_string(ranks) + " ranks");
    expect_same_bits(ranks, kAdamW, options);
  }
}

TEST_P(VirtualEngineRanks, HasTheCpusBitsInBf16WithAccumulation) {
  EngineOptions options;
  options.stage = GetParam();
  options.dtype = Dtype::bf16;
  options.accumulation_steps = 2;
  expect_same_bits(2, kAdamW, options);
}

INSTANTIATE_TEST_SUITE_P(Stages, VirtualEngineRanks, ::testing::Range(0, 4));

TEST(VirtualEngineOptimizers, LambHasTheCpusBits) {
  EngineOptions options;
  options.stage = 3;
  expect_same_bits(2, LAMB{.lr = 1e-2}, options);
}

// A unit's gather takes half as long as computing with it, and launches cost next to nothing.
constexpr const char* kSlowNetwork = R"({
  "name": "slow network", "source": "made up", "memory_bytes": 268435456,
  "flops_per_s": {"f32": 1e12}, "memory_bytes_per_s": 1e13,
  "host_to_device": {"bytes_per_s": 50e9, "latency_ns": 0}, "device_to_host": {"bytes_per_s": 50e9, "latency_ns": 0},
  "device_to_device": {"bytes_per_s": 100e9, "latency_ns": 0}, "launch_ns": 10, "kernel_ns": 20,
  "within_host": {"bytes_per_s": 10e9, "latency_ns": 100},
  "between_hosts": {"bytes_per_s": 10e9, "latency_ns": 100}})";

/// Of a steady step at stage 3: its simulated time, what its kernels take of it, and its gathers.
struct StepTime {
  double step_ns = 0, compute_ns = 0;
  int64_t gathered = 0, gathers = 0, awaited = 0;
  int64_t peak_resident_bytes = 0, budget_bytes = 0, largest_unit_numel = 0;
};

StepTime steady_step(int ranks, bool overlap) {
  const auto results = run_ranks(
      ranks,
      [&](Mesh mesh) {
        VirtualDevices& devices = own_devices(kSlowNetwork);
        torch::manual_seed(7);
        SmallNet model(29, 64, 8);
        EngineOptions options{.stage = 3};
        options.overlap = overlap;
        options.reduce_bucket_numel = 1 << 15;  // about a unit's, so that sums begin before the end
        options.cpu_operators = false;
        Engine engine(*model, kAdamW, options, mesh);
        StepTime time;
        for (int step = 0; step < 4; ++step) {
          const Batch batch = batch_of(step, 32);
          const Tensor tokens = batch.tokens.to(mesh.device()), targets = batch.targets.to(mesh.device());
          devices.synchronize();
          const EngineStats before = engine.stats();
          const double begin_ns = devices.simulated_ns(), busy_ns = devices.report().compute_ns;
          engine.backward(engine.forward([&] { return model->loss(tokens, targets); }));
          engine.step();
          devices.synchronize();
          const EngineStats after = engine.stats();
          time.step_ns = devices.simulated_ns() - begin_ns;
          time.compute_ns = devices.report().compute_ns - busy_ns;
          time.gathered = after.all_gather_elements - before.all_gather_elements;
          time.gathers = after.all_gathers - before.all_gathers;
          time.awaited = after.awaited_all_gathers - before.awaited_all_gathers;
          time.peak_resident_bytes = after.peak_resident_bytes;
        }
        time.budget_bytes = engine.plan().budget_bytes;
        for (const UnitLayout& unit : engine.plan().units)
          time.largest_unit_numel = std::max(time.largest_unit_numel, unit.padded_numel);
        hand_back(std::string_view(reinterpret_cast<const char*>(&time), sizeof time));
        expect_no_faults();
      },
      on_virtual_devices(kSlowNetwork));
  StepTime time;
  EXPECT_EQ(results[0].bytes.size(), sizeof time);
  std::memcpy(&time, results[0].bytes.data(), sizeof time);
  return time;
}

TEST(VirtualEngineTime, GathersAndSumsAreHiddenBehindComputing) {
  const StepTime hidden = steady_step(2, true), exposed = steady_step(2, false), again = steady_step(2, true);
  EXPECT_EQ(hidden.step_ns, again.step_ns) << "to the last digit";
  EXPECT_EQ(hidden.gathered, exposed.gathered);
  const double gathers_ns = 4.0 * static_cast<double>(hidden.gathered) / 2 / 10;
  EXPECT_GT(exposed.step_ns, exposed.compute_ns + gathers_ns);
  EXPECT_LT(hidden.step_ns, hidden.compute_ns + 0.2 * gathers_ns) << "but for the first and the last";
}

// What is not hidden: the first gather, the last sum of gradients, and the agreement before the update.
TEST(VirtualEngineTime, FourRanksHideAllGathersButTheFirstWithinTheBudget) {
  constexpr int kRanks = 4;
  constexpr double kNsOfByte = 0.1, kLatencyNs = 100;
  const StepTime step = steady_step(kRanks, true);
  EXPECT_GT(step.gathers, 10);
  EXPECT_EQ(step.awaited, 0) << "the first one begins with the pass";
  EXPECT_GT(step.peak_resident_bytes, 0);
  EXPECT_LE(step.peak_resident_bytes, step.budget_bytes);
  const double unit_bytes = 4.0 * static_cast<double>(step.largest_unit_numel);
  const double once_ns = (kRanks - 1) * (unit_bytes / kRanks * kNsOfByte + kLatencyNs);
  EXPECT_LT(step.step_ns, step.compute_ns + 2.5 * once_ns);
  const double all_ns = 3.0 / kRanks * 4 * static_cast<double>(step.gathered) * kNsOfByte;
  EXPECT_GT(all_ns, 5 * once_ns) << "there is something to hide";
}

}  // namespace
}  // namespace zero::virtual_device::testing
