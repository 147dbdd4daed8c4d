// Where summed gradients lie changes no bit of them.
#include "optim/passing_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/cpu_allocator.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using zero::detail::PassingMemory;

TEST(PassingMemory, HoldsEachTensorApart) {
  run_ranks(1, [](const zero::Mesh&) {
    zero::use_training_allocator();
    const std::vector<int64_t> numels{700000, 0, 3, 900001};
    PassingMemory memory(numels, at::kFloat);
    for (int round = 0; round < 2; ++round) {
      for (size_t i = 0; i < numels.size(); ++i) {
        memory.hold(i);
        ASSERT_EQ(memory.tensor(i).numel(), numels[i]);
        ASSERT_EQ(reinterpret_cast<uintptr_t>(memory.tensor(i).data_ptr()) % 64, 0U);
        memory.tensor(i).fill_(static_cast<double>(i + 1));
      }
      for (size_t i = 0; i < numels.size(); ++i) {
        memory.hold(i);
        EXPECT_TRUE(memory.tensor(i).eq(static_cast<double>(i + 1)).all().item<bool>()) << i;
      }
      memory.release();
    }
  });
}

struct SumsCase {
  int stage, ranks, micro_batches = 1, group = 0;
  at::ScalarType accumulation = at::kFloat;
};

std::string losses_of(const SumsCase& of, bool borrows_pages) {
  const auto results = run_ranks(of.ranks, [&](const zero::Mesh& mesh) {
    if (borrows_pages) zero::use_training_allocator();
    torch::manual_seed(1);
    SmallNet model(13, 40, 3);
    zero::EngineOptions options{.stage = of.stage, .gradient_clipping = 1, .shard_group_ranks = of.group};
    options.accumulation_steps = of.micro_batches;
    options.accumulation_dtype = of.accumulation;
    zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, options, mesh);
    for (int i = 0; i < 4 * of.micro_batches; ++i) {
      const Batch batch = batch_of(i, 3 * mesh.size(), 13).rows(3 * mesh.rank(), 3);
      const torch::Tensor loss = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
      engine.backward(loss);
      engine.step();
      hand_back(loss.detach());
    }
  });
  std::string all;
  for (const RankResult& result : results) all += result.bytes;
  return all;
}

TEST(PassingMemory, ChangesNoBitOfTraining) {
  for (const SumsCase& of : {SumsCase{0, 2}, SumsCase{1, 3, 2}, SumsCase{2, 2, 2}, SumsCase{3, 3},
                             SumsCase{3, 4, 2, 2}, SumsCase{2, 2, 1, 0, at::kBFloat16}}) {
    const std::string kept = losses_of(of, false);
    ASSERT_FALSE(kept.empty());
    EXPECT_EQ(kept, losses_of(of, true)) << "stage " << of.stage << ", " << of.ranks << " ranks";
  }
}

// The ranks fail behind the last layers' gradients, while sums of those are on their way to memory that is
// given back.
TEST(PassingMemory, ABackwardThatFailsEndsInItsError) {
  for (const int stage : {0, 3}) {
    const auto results = collect_ranks(2, [&](const zero::Mesh& mesh) {
      zero::use_training_allocator();
      SmallNet model(13, 40, 3);
      zero::EngineOptions options{.stage = stage, .reduce_bucket_numel = 1 << 10};
      options.share_parameters = false;
      zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, options, mesh);
      model->layers[0]->as<BlockImpl>()->up->bias.register_hook(
          [](const torch::Tensor&) -> torch::Tensor { throw std::runtime_error("out of apples"); });
      const Batch batch = batch_of(0, 6, 13).rows(3 * mesh.rank(), 3);
      const torch::Tensor loss = engine.forward([&] { return model->loss(batch.tokens, batch.targets); });
      // Rank 1 is late, so the sums of rank 0 are not there yet when it fails.
      if (mesh.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      try {
        engine.backward(loss);
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "out of apples");
        mesh.world().barrier("after it");
      }
    });
    for (const RankResult& result : results) {
      EXPECT_EQ(result.exit, 1);
      EXPECT_NE(result.error.find("the job has failed: out of apples"), std::string::npos) << result.error;
    }
  }
}
}  // namespace
