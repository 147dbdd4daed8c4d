// What a placement that was chosen within a budget is planned to take at its peak, against what tensors take:
// of one to three ranks, each charged its part of what they share (zero/memory_in_use.h).
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "plan/state_bytes.h"
#include "support/disk_directory.h"
#include "support/ranks.h"
#include "zero/activations.h"
#include "zero/cpu_allocator.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/language_model.h"
#include "zero/lazy.h"
#include "zero/memory_in_use.h"
#include "zero/model_shape.h"
#include "zero/model_spec.h"
#include "zero/tier_plan.h"

namespace zero {
namespace {

using testing::DiskDirectory;
using testing::run_ranks;

struct PeakCase {
  std::string name;
  ModelShape shape;
  int stage = 3;
  int64_t batch = 4, sequence = 64;
  Dtype dtype = Dtype::bf16;
  int accumulation = 1;
};

// GPT-2's proportions, and Llama's with fewer key heads.
std::vector<PeakCase> cases() {
  const Gpt2Shape gpt2{.vocab_size = 2048, .context_length = 64, .layers = 6, .width = 256, .heads = 4};
  const LlamaShape llama{.vocab_size = 1024,
                         .context_length = 64,
                         .layers = 6,
                         .width = 256,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_width = 64,
                         .mlp_width = 688};
  return {{.name = "GPT-2, stage 3", .shape = gpt2},
          {.name = "GPT-2, stage 1, long batches", .shape = gpt2, .stage = 1, .batch = 12},
          {.name = "Llama, stage 2", .shape = llama, .stage = 2},
          {.name = "GPT-2 in fp32, stage 2", .shape = gpt2, .stage = 2, .dtype = Dtype::f32},
          {.name = "GPT-2, stage 2, two micro-batches", .shape = gpt2, .stage = 2, .accumulation = 2}};
}

/// The most of a rank's memory in the second step, all ranks'.
int64_t measured_peak(const PeakCase& of, const EngineOptions& options, const Mesh& mesh) {
  torch::manual_seed(3);
  const auto model = lazily([&] { return make_language_model(of.shape); });
  Engine engine(*model, AdamW{}, options, mesh);
  const int64_t vocabulary = std::visit([](const auto& shape) { return shape.vocab_size; }, of.shape);
  for (int step = 0; step < 2; ++step) {
    reset_memory_peak();
    const at::Tensor tokens = torch::randint(0, vocabulary, {of.batch, of.sequence}, torch::kLong);
    for (int micro = 0; micro < of.accumulation; ++micro)
      engine.backward(engine.forward([&] { return model->loss(tokens, tokens); }));
    engine.step();
  }
  const at::Tensor most = torch::full({1}, static_cast<double>(memory_in_use().peak_bytes), torch::kDouble);
  mesh.world().all_reduce(most, Group::Reduce::Max, "peak").wait();
  return static_cast<int64_t>(most.item<double>());
}

/// The budgets, in percent of what everything in memory takes; as far down as something fits.
void compare(const PeakCase& of, const std::string& disk, const Mesh& mesh) {
  const RankPlaces places = RankPlaces::of(mesh.group("dp").memories(), /*on_cpu=*/true);
  EngineOptions options{.stage = of.stage, .dtype = of.dtype, .accumulation_steps = of.accumulation};
  options.gradient_clipping = 1;
  options.offload.path = disk;
  const ModuleSpec spec = module_spec(*lazily([&] { return make_language_model(of.shape); }));
  TierRequest request{
      .movable = {.parameter = of.stage == 3, .gradient = true, .master = true, .optimizer = true},
      .memory_bytes = int64_t{1} << 40,
      .activations = activation_bytes(of.shape, of.batch, of.sequence, of.dtype, {})};
  int chosen = 0;
  int64_t all = 0;
  for (const int percent : {100, 90, 80, 70, 60, 50, 40, 30}) {
    if (all > 0) request.memory_bytes = all * percent / 100;
    EngineOptions placed = options;
    TierPlan tiers;
    try {
      tiers = choose_tiers(spec, options, places, bytes_of_rule(AdamW{}), request);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Config) << error.what();
      break;
    }
    ++chosen;
    if (all == 0) all = tiers.peak_bytes;
    use_tiers(placed, tiers);
    const auto planned = static_cast<double>(tiers.peak_bytes);
    const auto measured = static_cast<double>(measured_peak(of, placed, mesh));
    const std::string what =
        of.name + ", " + std::to_string(mesh.size()) + " ranks, " + std::to_string(percent) + " %";
    EXPECT_NEAR(planned / measured, 1, 0.05) << what << ": " << tiers.explained;
    EXPECT_LE(measured, 1.05 * static_cast<double>(request.memory_bytes)) << what;
  }
  EXPECT_GE(chosen, 3) << of.name;
}

class PlannedPeaks : public ::testing::TestWithParam<std::tuple<int, size_t>> {};

TEST_P(PlannedPeaks, AreThoseOfEveryRank) {
  const DiskDirectory disk;
  const auto [ranks, number] = GetParam();
  run_ranks(ranks, [&, number = number](const Mesh& mesh) {
    use_training_allocator();
    compare(cases().at(number), disk.path().string(), mesh);
  });
}

INSTANTIATE_TEST_SUITE_P(OneToThreeRanks, PlannedPeaks,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Range(size_t{0}, cases().size())));

}  // namespace
}  // namespace zero
