// The engine on virtual devices: every stage has the CPU's bits, no race and no host access, and gathers are
// hidden behind computing.
#include <gtest/gtest.h>

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

/// Simulated time of a steady step at stage 3 of two ranks, and what its kernels take of it.
struct StepTime {
  double step_ns = 0, compute_ns = 0;
  int64_t gathered = 0;
};

StepTime steady_step(bool overlap) {
  const auto results = run_ranks(
      2,
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
          const int64_t gathered = engine.stats().all_gather_elements;
          const double begin_ns = devices.simulated_ns(), busy_ns = devices.report().compute_ns;
          engine.backward(engine.forward([&] { return model->loss(tokens, targets); }));
          engine.step();
          devices.synchronize();
          time = {devices.simulated_ns() - begin_ns, devices.report().compute_ns - busy_ns,
                  engine.stats().all_gather_elements - gathered};
        }
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
  const StepTime hidden = steady_step(true), exposed = steady_step(false), again = steady_step(true);
  EXPECT_EQ(hidden.step_ns, again.step_ns) << "to the last digit";
  EXPECT_EQ(hidden.gathered, exposed.gathered);
  const double gathers_ns = 4.0 * static_cast<double>(hidden.gathered) / 2 / 10;
  EXPECT_GT(exposed.step_ns, exposed.compute_ns + gathers_ns);
  EXPECT_LT(hidden.step_ns, hidden.compute_ns + 0.2 * gathers_ns) << "but for the first and the last";
}

}  // namespace
}  // namespace zero::virtual_device::testing
