// Layouts and what stays gathered: the same bits, the traffic that the plan says, checkpoints that load in
// any layout; and states where a plan of tiers put them.
#include <gtest/gtest.h>

#include <filesystem>

#include "support/checkpoint_files.h"
#include "support/disk_directory.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"
#include "zero/model_spec.h"
#include "zero/tier_plan.h"

namespace {
using namespace zero::testing;
namespace fs = std::filesystem;

constexpr int64_t kWords = 64, kPlacedWidth = 32;
constexpr int kRows = 12;

/// A small model in an engine.
struct Placed {
  Placed(const zero::Mesh& job, const zero::EngineOptions& options)
      : mesh(job),
        model((torch::manual_seed(3), kWords), kPlacedWidth, 2),
        engine(*model, zero::AdamW{.lr = 1e-2}, options, job) {}
  void steps(int begin, int end) {
    const int each = kRows / mesh.size();
    for (int step = begin; step < end; ++step) {
      const Batch batch = batch_of(step, kRows, kWords).rows(mesh.rank() * each, each);
      engine.backward(engine.forward([&] { return model->loss(batch.tokens, batch.targets); }));
      engine.step();
    }
  }
  zero::Mesh mesh;
  SmallNet model;
  zero::Engine engine;
};

void expect_equal(const zero::Mesh& mesh, const fs::path& a, const fs::path& b, const std::string& what) {
  if (mesh.rank() == 0) {
    EXPECT_TRUE(same(read_all(a), read_all(b))) << what;
  }
  mesh.world().barrier("compared");
}

zero::EngineOptions apart() {
  return {.stage = 3, .dtype = at::kBFloat16, .budget_bytes = 0, .share_parameters = false};
}

class ShardLayouts : public ::testing::TestWithParam<int> {};

TEST_P(ShardLayouts, ChangeNoBitAndLoadEachOthersCheckpoints) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    Placed usual(mesh, apart());
    usual.steps(0, 3);
    const fs::path expected = usual.engine.save(folder.path() / "usual");
    usual.steps(3, 5);
    const fs::path later = usual.engine.save(folder.path() / "usual");
    zero::EngineOptions gathered = apart(), persistent = apart(), by_tensor = apart(), all = apart();
    gathered.gathered_ratio = 0.5;
    persistent.persistent_numel = 100;
    by_tensor.shard_unit = zero::ShardUnit::Tensor;
    all.stage = 1;
    all.shard_unit = zero::ShardUnit::Tensor;
    for (const auto& [name, options] : {std::pair{"gathered", gathered},
                                        {"persistent", persistent},
                                        {"by tensor", by_tensor},
                                        {"by tensor, stage 1", all}}) {
      Placed other(mesh, options);
      other.steps(0, 3);
      expect_equal(mesh, expected, other.engine.save(folder.path() / name), name);
      Placed resumed(mesh, options);
      resumed.engine.load(expected);
      resumed.steps(3, 5);
      expect_equal(mesh, later, resumed.engine.save(folder.path() / name), std::string(name) + ", resumed");
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Ranks, ShardLayouts, ::testing::Values(1, 2, 3));

TEST(ShardLayout, WhatStaysGatheredTravelsOnceAStep) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    int64_t before = -1;
    for (const double ratio : {0.0, 0.5, 1.0}) {
      zero::EngineOptions options = apart();
      options.prefetch_bytes = 0;
      options.gathered_ratio = ratio;
      Placed placed(mesh, options);
      placed.steps(0, 2);
      const int64_t begun = placed.engine.stats().all_gather_elements;
      placed.steps(2, 3);
      const int64_t step = placed.engine.stats().all_gather_elements - begun;
      if (before >= 0) {
        EXPECT_LT(step, before) << "share " << ratio;
      }
      before = step;
    }
    // Everything once.
    int64_t model = 0;
    Placed placed(mesh, apart());
    for (const zero::UnitLayout& unit : placed.engine.plan().units) model += unit.padded_numel;
    EXPECT_EQ(before, model);
  });
}

TEST(ShardLayout, StatesAreWhereAPlanOfTiersPutThem) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    zero::EngineOptions options{.stage = 2, .dtype = at::kBFloat16};
    Placed memory(mesh, options);
    memory.steps(0, 3);
    const fs::path expected = memory.engine.save(folder.path() / "memory");

    options.offload = {.path = folder.path(), .buffer_count = 2, .piece_numel = 1024, .block_bytes = 4096};
    const zero::RankPlaces places{.ranks = 2, .together = 2};
    const int64_t peak = zero::peak_bytes(memory.engine.plan(), {});
    const zero::TierPlan chosen =
        zero::choose_tiers(zero::module_spec(*SmallNet(kWords, kPlacedWidth, 2)), options, places, {},
                           {.movable = {.master = true, .optimizer = true}, .memory_bytes = peak - 30'000});
    ASSERT_GT(chosen.disk_bytes, 0);
    options.unit_tiers = chosen.unit_tiers;
    Placed placed(mesh, options);
    EXPECT_EQ(placed.engine.plan().rank.tier_bytes, chosen.plan.rank.tier_bytes);
    placed.steps(0, 3);
    expect_equal(mesh, expected, placed.engine.save(folder.path() / "placed"), "placed");
    const zero::DiskStats disk = placed.engine.stats().disk;
    EXPECT_EQ(disk.ring_bytes, chosen.plan.rank.ring_bytes);
    // Whole blocks of 4 KiB are written.
    EXPECT_GE(disk.written_bytes, 3 * chosen.traffic.disk_written_bytes);
    EXPECT_LE(disk.written_bytes, 3 * chosen.disk_bytes);
  });
}

}  // namespace
