// The engine on virtual devices: every stage has the CPU's bits, no race and no host access, and gathers are
// hidden behind computing.
#include <gtest/gtest.h>

#include <cmath>

#include "support/small_net.h"
#include "support/virtual_ranks.h"
#include "zero/engine.h"
#include "zero/lazy.h"

namespace zero::virtual_device::testing {
namespace {

using namespace zero::testing;
using torch::Tensor;

const AdamW kAdamW{.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
constexpr int kSteps = 3;
constexpr int64_t kMicro = 2;

void hand_back_number(double value) {
  hand_back(std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
}

void train(const Mesh& mesh, const OptimizerSpec& spec, EngineOptions options) {
  torch::manual_seed(7);
  SmallNet model = lazily([] { return SmallNet(); });
  options.gradient_clipping = 0.7;
  options.cpu_operators = false;
  Engine engine(*model, spec, options, mesh);
  const int micro_batches = mesh.size() * options.accumulation_steps;
  for (int step = 0; step < kSteps; ++step) {
    Batch batch = batch_of(step, kMicro * micro_batches);
    for (int i = 0; i < options.accumulation_steps; ++i) {
      Batch rows = batch.rows((i * mesh.size() + mesh.rank()) * kMicro, kMicro);
      const Tensor tokens = rows.tokens.to(mesh.device()), targets = rows.targets.to(mesh.device());
      Tensor loss = engine.forward([&] { return model->loss(tokens, targets); });
      hand_back_number(loss.item<double>());
      engine.backward(loss);
    }
    const StepResult result = engine.step();
    EXPECT_TRUE(result.stepped);
    hand_back_number(result.clip.norm_before);
  }
  for (const auto& item : model->named_parameters())
    hand_back(engine.full_parameter(item.key()).cpu().contiguous());
}

void expect_same_bits(int ranks, const OptimizerSpec& spec, const EngineOptions& options) {
  const auto host = run_ranks(ranks, [&](Mesh mesh) { train(mesh, spec, options); });
  const auto device = run_ranks(
      ranks,
      [&](Mesh mesh) {
        own_devices();
        train(mesh, spec, options);
        expect_no_faults();
      },
      on_virtual_devices());
  for (size_t rank = 0; rank < host.size(); ++rank) {
    EXPECT_FALSE(host[rank].bytes.empty());
    EXPECT_TRUE(host[rank].bytes == device[rank].bytes) << "rank " << rank;
  }
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

}  // namespace
}  // namespace zero::virtual_device::testing
