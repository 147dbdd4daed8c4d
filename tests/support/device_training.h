#pragma once
// A few steps of a small model on whatever device a mesh has, for comparing devices, transports and stages.

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"
#include "zero/lazy.h"

namespace zero::testing {

inline void hand_back_number(double value) {
  hand_back(std::string_view(reinterpret_cast<const char*>(&value), sizeof value));
}

/// In a rank: three steps with clipping; hands back every loss and norm, then the parameters.
inline void train_small_net(const Mesh& mesh, const OptimizerSpec& spec, EngineOptions options) {
  constexpr int kSteps = 3;
  constexpr int64_t kMicro = 2;
  torch::manual_seed(7);
  SmallNet model = lazily([] { return SmallNet(); });
  options.gradient_clipping = 0.7;
  options.cpu_operators = false;
  Engine engine(*model, spec, options, mesh);
  const int micro_batches = mesh.size() * options.accumulation_steps;
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = batch_of(step, kMicro * micro_batches);
    for (int i = 0; i < options.accumulation_steps; ++i) {
      const Batch rows = batch.rows((i * mesh.size() + mesh.rank()) * kMicro, kMicro);
      const torch::Tensor tokens = rows.tokens.to(mesh.device()), targets = rows.targets.to(mesh.device());
      torch::Tensor loss = engine.forward([&] { return model->loss(tokens, targets); });
      hand_back_number(loss.item<double>());
      engine.backward(loss);
    }
    const StepResult result = engine.step();
    EXPECT_TRUE(result.stepped);
    hand_back_number(result.clip().norm_before);
  }
  for (const auto& item : model->named_parameters())
    hand_back(engine.full_parameter(item.key()).cpu().contiguous());
}

/// Every rank handed back the same bytes in both.
inline void expect_same_results(const std::vector<RankResult>& one, const std::vector<RankResult>& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t rank = 0; rank < one.size(); ++rank) {
    EXPECT_FALSE(one[rank].bytes.empty());
    EXPECT_TRUE(one[rank].bytes == other[rank].bytes) << "rank " << rank;
  }
}

}  // namespace zero::testing
