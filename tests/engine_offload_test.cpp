// Optimizer states on disk: the same bits as in memory, at every stage and number of ranks, through steps,
// saves and resumes; and a directory that will not do is an error of every rank before anything is allocated.
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "support/checkpoint_files.h"
#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace {
using namespace zero::testing;
namespace fs = std::filesystem;
using torch::Tensor;

constexpr int64_t kVocabulary = 101, kWidth = 48, kPiece = 1024;  // a shard has several pieces
constexpr int kSamples = 12;

zero::EngineOptions on_disk(zero::EngineOptions options, const fs::path& path) {
  options.tiers = {.master = zero::Tier::Disk, .optimizer = zero::Tier::Disk};
  options.offload = {.path = path, .buffer_count = 3, .piece_numel = kPiece, .block_bytes = 4096};
  return options;
}

/// A model in an engine, and its steps.
struct Trained {
  Trained(const zero::Mesh& job, const zero::OptimizerSpec& optimizer, const zero::EngineOptions& options,
          int64_t vocabulary = kVocabulary, int blocks = 2)
      : mesh(job),
        words(vocabulary),
        model((torch::manual_seed(1), vocabulary), kWidth, blocks),
        engine(*model, optimizer, options, job) {}
  void steps(int begin, int end) {
    const int each = kSamples / mesh.size();
    for (int step = begin; step < end; ++step) {
      const Batch batch = batch_of(step, kSamples, words).rows(mesh.rank() * each, each);
      engine.backward(engine.forward([&] { return model->loss(batch.tokens, batch.targets); }));
      engine.step();
    }
  }
  zero::Mesh mesh;
  int64_t words;
  SmallNet model;
  zero::Engine engine;
};

/// On rank 0: two checkpoints have the same tensors to the byte.
void expect_same(const zero::Mesh& mesh, const fs::path& a, const fs::path& b, const std::string& what) {
  if (mesh.rank() == 0) {
    EXPECT_TRUE(same(read_all(a), read_all(b))) << what;
  }
  mesh.world().barrier("compared");
}

class Offload : public ::testing::TestWithParam<int> {};

TEST_P(Offload, StatesOnDiskChangeNoBit) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (int stage = 0; stage <= 3; ++stage)
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const std::string what = "stage " + std::to_string(stage) + ", " + c10::toString(dtype);
        const fs::path place = folder.path() / what;
        zero::EngineOptions options{.stage = stage, .dtype = dtype, .gradient_clipping = 0.5};
        options.group_numel = 200;
        Trained memory(mesh, zero::AdamW{.lr = 1e-2}, options);
        Trained disk(mesh, zero::AdamW{.lr = 1e-2}, on_disk(options, folder.path()));
        memory.steps(0, 3);
        disk.steps(0, 3);
        const fs::path one = memory.engine.save(place / "memory"), two = disk.engine.save(place / "disk");
        expect_same(mesh, one, two, what);

        // Either goes on from what the other has saved.
        Trained resumed(mesh, zero::AdamW{.lr = 1e-2}, on_disk(options, folder.path()));
        resumed.engine.load(one);
        resumed.steps(3, 5);
        memory.engine.load(two);
        memory.steps(3, 5);
        disk.steps(3, 5);
        const fs::path after = memory.engine.save(place / "memory");
        expect_same(mesh, after, resumed.engine.save(place / "resumed"), what + ", resumed");
        expect_same(mesh, after, disk.engine.save(place / "disk"), what + ", gone on");
      }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Offload, ::testing::Values(1, 2, 3));

TEST(OffloadedStates, EveryRuleAndWayOfTransferGivesTheSameBits) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    const std::vector<std::pair<std::string, zero::OptimizerSpec>> rules{
        {"Adam", zero::Adam{.lr = 1e-2}}, {"SGD", zero::SGD{.lr = 1e-2, .momentum = 0.9}},
        {"Lion", zero::Lion{.lr = 1e-3}}, {"LAMB", zero::LAMB{.lr = 1e-2}},
        {"Muon", zero::Muon{.lr = 1e-2}}, {"Adafactor", zero::Adafactor{.beta1 = 0.9}}};
    for (const auto& [name, rule] : rules) {
      zero::EngineOptions options{.stage = 3, .dtype = at::kBFloat16};
      Trained memory(mesh, rule, options);
      memory.steps(0, 3);
      const fs::path expected = memory.engine.save(folder.path() / name);
      for (int way = 0; way < 4; ++way) {
        zero::EngineOptions other = on_disk(options, folder.path());
        if (way == 1) other.offload.read_ahead = other.offload.write_behind = false;
        if (way == 2) other.offload.buffer_count = 2;
        if (way == 3) other.offload.ratio = 0.4;
        Trained disk(mesh, rule, other);
        disk.steps(0, 3);
        const std::string what = name + ", way " + std::to_string(way);
        expect_same(mesh, expected, disk.engine.save(folder.path() / what), what);
        const zero::RankPlan& plan = disk.engine.plan().rank;
        const int64_t offloaded = plan.tier_bytes[static_cast<size_t>(zero::Tier::Disk)];
        if (way == 3) {
          EXPECT_GT(offloaded, 0);
          EXPECT_GT(plan.tier_bytes[static_cast<size_t>(zero::Tier::Device)],
                    plan.parameter_bytes + plan.gradient_bytes);
        } else {
          int64_t means = 0;  // of rows and columns: they stay in memory
          for (const zero::UnitLayout& unit : disk.engine.plan().units) means += 4 * unit.factored_numel;
          EXPECT_EQ(offloaded, plan.master_bytes + plan.optimizer_bytes - means);
        }
      }
    }
  });
}

constexpr size_t kOnDisk = static_cast<size_t>(zero::Tier::Disk);

/// Of a bf16 AdamW whose moments and masters' low halves are on disk, 10 bytes an element: those of `ratio`
/// of the elements to within half of the largest unit, as the plan counts them, and `written` in a step to
/// within its blocks.
void expect_share(const zero::Plan& plan, double ratio, int64_t written, const std::string& what) {
  int64_t all = 0, away = 0, largest = 0, bytes = 0, blocks = 0;
  for (const zero::UnitLayout& unit : plan.units) {
    all += unit.numel;
    largest = std::max(largest, unit.numel);
    if (unit.tiers.optimizer != zero::Tier::Disk) continue;
    EXPECT_EQ(unit.tiers.master, zero::Tier::Disk) << what;
    away += unit.numel;
    bytes += 10 * unit.shard_numel;
    blocks += 3 * ((unit.shard_numel + kPiece - 1) / kPiece);
  }
  EXPECT_LE(std::abs(static_cast<double>(away) - ratio * static_cast<double>(all)),
            static_cast<double>(largest) / 2)
      << what << ": " << away << " of " << all << " elements are away";
  if (ratio == 0 || ratio == 1) {
    EXPECT_EQ(away, ratio == 0 ? 0 : all) << what;
  }
  EXPECT_EQ(plan.rank.tier_bytes[kOnDisk], bytes) << what;
  EXPECT_EQ(written, plan.rank.step_written_bytes) << what;
  EXPECT_GE(written, bytes) << what;
  EXPECT_LE(written, bytes + blocks * 4096) << what;
}

// offload.ratio: the share that is put away is what was asked for to within half of the largest unit, the
// file has the bytes that the plan counts, and no bit of the result depends on it.
TEST(OffloadedStates, TheShareThatIsAskedForIsPutAway) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    for (const int blocks : {1, 7})
      for (const int64_t vocabulary :
           {29, 1009}) {  // the embedding is one unit of many, or most of the model
        const zero::EngineOptions options{.stage = 2, .dtype = at::kBFloat16};
        const auto trained = [&](const zero::EngineOptions& other) {
          return Trained(mesh, zero::AdamW{.lr = 1e-2}, other, vocabulary, blocks);
        };
        Trained memory = trained(options);
        memory.steps(0, 2);
        const std::string what = std::to_string(blocks) + " blocks, " + std::to_string(vocabulary) + " words";
        const fs::path expected = memory.engine.save(folder.path() / (what + ", memory"));
        for (const double ratio : {0.0, 0.3, 1.0}) {
          zero::EngineOptions other = on_disk(options, folder.path());
          other.offload.ratio = ratio;
          other.offload.write_behind = false;  // what is written is there when a step ends
          Trained disk = trained(other);
          const std::string which = what + ", share " + std::to_string(ratio);
          disk.steps(0, 1);
          const int64_t before = disk.engine.stats().disk.written_bytes;
          disk.steps(1, 2);
          expect_same(mesh, expected, disk.engine.save(folder.path() / which), which);
          const int64_t written = disk.engine.stats().disk.written_bytes - before;
          expect_share(disk.engine.plan(), ratio, written, which);
        }
      }
  });
}

/// torch::optim::AdamW, or RMSprop with momentum.
zero::OptimizerSpec torch_rule(bool rmsprop) {
  return zero::TorchOptimizer{[rmsprop](std::vector<torch::optim::OptimizerParamGroup> groups)
                                  -> std::unique_ptr<torch::optim::Optimizer> {
    if (rmsprop)
      return std::make_unique<torch::optim::RMSprop>(std::move(groups),
                                                     torch::optim::RMSpropOptions(1e-3).momentum(0.9));
    return std::make_unique<torch::optim::AdamW>(std::move(groups), torch::optim::AdamWOptions(1e-2));
  }};
}

TEST(OffloadedStates, OfTorchOptimizersComeAUnitAtATime) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    for (const bool rmsprop : {false, true})
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        const std::string what = std::string(rmsprop ? "RMSprop, " : "AdamW, ") + c10::toString(dtype);
        const zero::EngineOptions options{.stage = 3, .dtype = dtype, .gradient_clipping = 0.5};
        Trained memory(mesh, torch_rule(rmsprop), options);
        Trained disk(mesh, torch_rule(rmsprop), on_disk(options, folder.path()));
        memory.steps(0, 3);
        disk.steps(0, 3);
        const fs::path one = memory.engine.save(folder.path() / what / "memory");
        expect_same(mesh, one, disk.engine.save(folder.path() / what / "disk"), what);
        Trained resumed(mesh, torch_rule(rmsprop), on_disk(options, folder.path()));
        resumed.engine.load(one);
        resumed.steps(3, 5);
        memory.steps(3, 5);
        expect_same(mesh, memory.engine.save(folder.path() / what / "memory"),
                    resumed.engine.save(folder.path() / what / "resumed"), what + ", resumed");
        const zero::RankPlan& plan = disk.engine.plan().rank;
        const int64_t moved = disk.engine.stats().disk.written_bytes;
        EXPECT_GE(plan.step_written_bytes, plan.tier_bytes[static_cast<size_t>(zero::Tier::Disk)]);
        EXPECT_GE(moved, 3 * plan.step_written_bytes);
        EXPECT_LT(plan.ring_bytes, plan.file_bytes) << "a unit at a time, not all of them";
      }
  });
}

/// Without the ranks' own: their random generators.
Tensors values_of(Tensors tensors) {
  std::erase_if(tensors, [](const auto& one) { return one.first.starts_with("rank/"); });
  return tensors;
}

// Both ranks see the same samples, and the sum of two equal gradients is exact: what differs is only who
// keeps what. (eight_bit_test.cpp has more ranks, on gradients that are given.)
TEST(OffloadedStates, MomentsInEightBitsAreTheSameForAnyNumberOfRanks) {
  const DiskDirectory folder;
  for (const int ranks : {1, 2})
    run_ranks(ranks, [&](const zero::Mesh& mesh) {
      const zero::AdamW rule{.lr = 1e-2, .states_8bit = true};
      for (const bool disk : {false, true})
        for (int stage = 0; stage <= 3; ++stage) {
          zero::EngineOptions options{.stage = stage};
          if (disk) options = on_disk(options, folder.path());
          Trained run(mesh, rule, options);
          const auto steps = [](Trained& of, int begin, int end) {
            for (int step = begin; step < end; ++step) {
              const Batch batch = batch_of(step, 4, kVocabulary);
              of.engine.backward(
                  of.engine.forward([&] { return of.model->loss(batch.tokens, batch.targets); }));
              of.engine.step();
            }
          };
          steps(run, 0, 2);
          const std::string what =
              std::to_string(ranks) + " ranks, stage " + std::to_string(stage) + (disk ? ", on disk" : "");
          const fs::path middle = run.engine.save(folder.path() / (what + ", middle"));
          Trained resumed(mesh, rule, options);
          resumed.engine.load(middle);
          steps(run, 2, 4);
          steps(resumed, 2, 4);
          const fs::path saved = run.engine.save(folder.path() / what);
          expect_same(mesh, saved, resumed.engine.save(folder.path() / (what + ", resumed")), what);
          if (mesh.rank() != 0) continue;
          const Tensors found = read_all(saved);
          EXPECT_EQ(found.at("optimizer/exp_avg_codes/embedding.weight").dtype, zero::Dtype::u8);
          EXPECT_EQ(found.at("optimizer/exp_avg_scales/embedding.weight").shape,
                    std::vector<int64_t>{(kVocabulary * kWidth + 255) / 256});
          const fs::path first = folder.path() / "1 ranks, stage 0" / saved.filename();
          EXPECT_TRUE(same(values_of(found), values_of(read_all(first)))) << what;
          const zero::RankPlan& plan = run.engine.plan().rank;
          EXPECT_LT(plan.optimizer_bytes, plan.parameter_bytes) << "2 bytes and a little, not 8";
        }
    });
}

TEST(OffloadedStates, WhatPassesThroughMemoryIsTheRing) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    const zero::EngineOptions options = on_disk({.stage = 3, .dtype = at::kBFloat16}, folder.path());
    Trained run(mesh, zero::AdamW{.lr = 1e-2}, options);
    const zero::RankPlan& plan = run.engine.plan().rank;
    EXPECT_LE(run.engine.stats().disk.read_bytes, plan.master_bytes)
        << "some of what masters begin with; moments begin as zeros that are not read";
    run.steps(0, 1);
    const int64_t began = run.engine.stats().disk.written_bytes;
    run.steps(1, 4);
    const zero::DiskStats disk = run.engine.stats().disk;
    EXPECT_EQ(disk.ring_bytes, plan.ring_bytes);
    EXPECT_GT(plan.master_bytes + plan.optimizer_bytes, plan.ring_bytes) << "otherwise it says nothing";
    // Each extent is rounded up to 4 KiB; the last pieces may still be on their way.
    EXPECT_LE(disk.written_bytes - began, 3 * plan.file_bytes);
    EXPECT_GE(disk.written_bytes - began, 2 * plan.step_written_bytes);
    EXPECT_FALSE(disk.transport.empty());
    EXPECT_EQ(plan.total_bytes(), plan.state_bytes() - plan.master_bytes - plan.optimizer_bytes +
                                      plan.ring_bytes + plan.ahead_bytes + plan.gather_window_bytes +
                                      plan.bucket_bytes + plan.largest_gradient_bytes);
  });
}

TEST(OffloadedStates, WholeValuesAreThereForWhoeverLooks) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    const zero::EngineOptions options{.stage = 2, .dtype = at::kBFloat16};
    Trained memory(mesh, zero::AdamW{.lr = 1e-2}, options),
        disk(mesh, zero::AdamW{.lr = 1e-2}, on_disk(options, folder.path()));
    for (int step = 0; step < 3; ++step) {
      memory.steps(step, step + 1);
      disk.steps(step, step + 1);
      for (const char* name : {"embedding.weight", "layers.1.up.weight"}) {
        EXPECT_TRUE(torch::equal(memory.engine.full_parameter(name), disk.engine.full_parameter(name)));
        EXPECT_TRUE(torch::equal(memory.engine.full_optimizer_state(name, "exp_avg_sq"),
                                 disk.engine.full_optimizer_state(name, "exp_avg_sq")));
      }
    }
  });
}

TEST(OffloadedStates, ADirectoryThatWillNotDoIsAnErrorOfEveryRank) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    const auto make = [&](const fs::path& path, const zero::OptimizerSpec& spec) {
      SmallNet model(13, 6, 2);
      const zero::Engine engine(*model, spec, on_disk({.stage = 1}, path), mesh);
    };
    EXPECT_ERROR(make("/dev/shm", zero::AdamW{}), Config, "offload.path: /dev/shm is in memory (tmpfs)");
    // Only one rank's is missing: all hear of it.
    EXPECT_ERROR(make(mesh.rank() == 1 ? folder.path() / "missing" : folder.path(), zero::AdamW{}), Config,
                 "offload.path: ");
    EXPECT_ERROR(make("", zero::AdamW{}), Config, "offload.path");
  });
}

}  // namespace
