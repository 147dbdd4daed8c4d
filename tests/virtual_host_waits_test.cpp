// The host runs ahead of the device: in a steady step it waits where the user reads a value, nowhere else.
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "support/small_net.h"
#include "support/virtual_ranks.h"
#include "zero/engine.h"
#include "zero/lr_schedule.h"

namespace zero::virtual_device::testing {
namespace {

using namespace zero::testing;
using torch::Tensor;

using Waits = std::map<std::string, int64_t>;

Waits waits_since(const Waits& before) {
  Waits since;
  for (const auto& [operation, count] : own_devices().report().host_waits) {
    const auto found = before.find(operation);
    const int64_t more = count - (found != before.end() ? found->second : 0);
    if (more > 0) since[operation] = more;
  }
  return since;
}

constexpr int kStepsToSteady = 2;  // recording the schedule, agreeing on the order of gradients

void expect_no_waits(const Mesh& mesh, const OptimizerSpec& optimizer, EngineOptions options) {
  own_devices();
  torch::manual_seed(7);
  SmallNet model;
  options.gradient_clipping = 0.5;
  options.cpu_operators = false;
  Engine engine(*model, optimizer, options, mesh);
  const Batch batch = batch_of(0, 2);
  const Tensor tokens = batch.tokens.to(mesh.device()), targets = batch.targets.to(mesh.device());
  Waits before;
  StepResult result;
  for (int step = 0; step < kStepsToSteady + 2; ++step) {
    if (step == kStepsToSteady) before = own_devices().report().host_waits;
    Tensor loss;
    for (int i = 0; i < options.accumulation_steps; ++i) {
      loss = engine.forward([&] { return model->loss(tokens, targets); });
      engine.backward(loss);
    }
    result = engine.step();
    loss.item<float>();
  }
  EXPECT_EQ(waits_since(before), (Waits{{"aten::_local_scalar_dense", 2}})) << "the losses";
  EXPECT_GT(result.clip().norm_before, 0);
  EXPECT_FALSE(result.skipped());
  EXPECT_EQ(engine.stats().steps, kStepsToSteady + 2);
  EXPECT_EQ(waits_since(before), (Waits{{"aten::_local_scalar_dense", 2}})) << "the loss came after the norm";
  expect_no_faults();
}

class VirtualHostWaits : public ::testing::TestWithParam<int> {};

TEST_P(VirtualHostWaits, AreNoneInASteadyStep) {
  for (const int ranks : {1, 2})
    run_ranks(
        ranks,
        [](Mesh mesh) {
          expect_no_waits(mesh, AdamW{}, {.stage = GetParam()});
          expect_no_waits(mesh, LAMB{}, {.stage = GetParam()});
        },
        on_virtual_devices());
}

TEST_P(VirtualHostWaits, AreNoneWithAccumulationInBf16) {
  EngineOptions options{.stage = GetParam(), .dtype = Dtype::bf16};
  options.accumulation_steps = 2;
  run_ranks(
      2, [&](Mesh mesh) { expect_no_waits(mesh, SGD{.lr = 0.1, .momentum = 0.9}, options); },
      on_virtual_devices());
}

INSTANTIATE_TEST_SUITE_P(Stages, VirtualHostWaits, ::testing::Range(0, 4));

// The device decides that a step is skipped; the host counts it later, and the schedule goes by the count.
void skip_a_step(const Mesh& mesh, const OptimizerSpec& optimizer) {
  torch::manual_seed(7);
  SmallNet model;
  EngineOptions options{.stage = 3};
  options.gradient_clipping = 0.5;
  options.cpu_operators = false;
  options.schedule = LrSchedule(LinearLr{.warmup_steps = 3, .total_steps = 8});
  Engine engine(*model, optimizer, options, mesh);
  for (int step = 0; step < 5; ++step) {
    const Batch batch = batch_of(step, 2);
    const bool is_bad = step == 2 && mesh.rank() == 1;
    const Tensor tokens = batch.tokens.to(mesh.device()), targets = batch.targets.to(mesh.device());
    engine.backward(engine.forward([&] {
      return model->loss(tokens, targets) * (is_bad ? std::numeric_limits<float>::infinity() : 1.0F);
    }));
    const StepResult result = engine.step();
    hand_back(std::string_view(reinterpret_cast<const char*>(&result.lr), sizeof result.lr));
    if (step % 2 == 0) {
      EXPECT_EQ(result.skipped(), step == 2);
    }
  }
  EXPECT_EQ(engine.stats().steps, 4);
  EXPECT_EQ(engine.stats().skipped_steps, 1);
  for (const std::string& name : engine.parameter_names()) hand_back(engine.full_parameter(name));
}

TEST(VirtualSteps, AreSkippedOnTheDevice) {
  for (const OptimizerSpec& optimizer : {OptimizerSpec(AdamW{}), OptimizerSpec(LAMB{})}) {
    const auto host = run_ranks(2, [&](Mesh mesh) { skip_a_step(mesh, optimizer); });
    const auto device = run_ranks(
        2,
        [&](Mesh mesh) {
          skip_a_step(mesh, optimizer);
          expect_no_faults();
        },
        on_virtual_devices());
    for (size_t rank = 0; rank < host.size(); ++rank) EXPECT_TRUE(host[rank].bytes == device[rank].bytes);
  }
}

}  // namespace
}  // namespace zero::virtual_device::testing
