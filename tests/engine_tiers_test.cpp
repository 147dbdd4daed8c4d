// Parameters and gradients on disk, beside masters and optimizer states: the same bits as in memory, whatever
// happens in between, and the bytes that the plan has said.
#include <gtest/gtest.h>

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
using zero::Tier;

constexpr int64_t kTierWords = 101, kHidden = 48;
constexpr int kBatchSamples = 6;

struct Setting {
  std::string name;
  zero::EngineOptions options;
  bool freezes = false;  // the first block
};

zero::EngineOptions all_on_disk(zero::EngineOptions options, const fs::path& path, int ranks) {
  const bool sharded = options.stage == 3 || ranks == 1;
  options.tiers = {.parameter = sharded ? Tier::Disk : Tier::Device,
                   .gradient = Tier::Disk,
                   .master = Tier::Disk,
                   .optimizer = Tier::Disk};
  options.offload.path = path;
  options.offload.buffer_count = 3;
  options.offload.piece_numel = 2048;  // a shard has several
  options.offload.block_bytes = 4096;
  return options;
}

/// A model in an engine: steps of some micro-batches.
struct TieredRun {
  TieredRun(const zero::Mesh& job, const Setting& setting, const zero::EngineOptions& options)
      : mesh(job), model((torch::manual_seed(1), kTierWords), kHidden, 2) {
    if (setting.freezes)
      for (Tensor& parameter : model->layers[0]->parameters()) parameter.requires_grad_(false);
    engine = std::make_unique<zero::Engine>(*model, zero::AdamW{.lr = 1e-2}, options, job);
  }
  Tensor loss(int number) {
    const int each = kBatchSamples / mesh.size();
    const Batch batch = batch_of(number, kBatchSamples, kTierWords).rows(mesh.rank() * each, each);
    return engine->forward([&] { return model->loss(batch.tokens, batch.targets); });
  }
  void micro_batches(int step) {
    const int micro = engine->plan().accumulation_steps;
    for (int i = 0; i < micro; ++i) engine->backward(loss(step * micro + i));
  }
  void steps(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      micro_batches(step);
      engine->step();
    }
  }
  zero::Mesh mesh;
  SmallNet model;
  std::unique_ptr<zero::Engine> engine;
};

void expect_same_bytes(const zero::Mesh& mesh, const fs::path& a, const fs::path& b,
                       const std::string& what) {
  if (mesh.rank() == 0) {
    EXPECT_TRUE(same(read_all(a), read_all(b))) << what;
  }
  mesh.world().barrier("compared");
}

std::vector<Setting> settings_for(int ranks) {
  std::vector<Setting> settings;
  for (int stage = 0; stage <= 3; ++stage)
    for (const int micro : {1, 3})
      for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
        zero::EngineOptions options{.stage = stage, .accumulation_steps = micro, .gradient_clipping = 0.5};
        options.dtype = dtype == at::kFloat ? zero::Dtype::f32 : zero::Dtype::bf16;
        options.group_numel = 200;
        const std::string name = "stage " + std::to_string(stage) + ", " + std::to_string(micro) +
                                 " micro-batches, " + c10::toString(dtype);
        settings.push_back({name, options});
        if (stage != 3 || micro == 1) continue;
        settings.push_back({name + ", frozen", options, /*freezes=*/true});
        options.overlap = false;
        settings.push_back({name + ", no overlap", options});
        options.overlap = true;
        options.accumulation_dtype = zero::Dtype::bf16;
        settings.push_back({name + ", sums in bf16", options});
        options.accumulation_dtype = zero::Dtype::f32;
        options.budget_bytes = 0;
        settings.push_back({name + ", no budget", options});
        if (ranks == 1) continue;
        options.shard_group_ranks = 1;
        settings.push_back({name + ", replicas", options});
      }
  if (ranks == 2) return settings;
  std::erase_if(settings, [](const Setting& setting) { return setting.options.stage == 1; });
  return settings;
}

class Tiers : public ::testing::TestWithParam<int> {};

TEST_P(Tiers, EverythingOnDiskChangesNoBit) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const Setting& setting : settings_for(mesh.size())) {
      const fs::path place = folder.path() / setting.name;
      const zero::EngineOptions disk_options = all_on_disk(setting.options, folder.path(), mesh.size());
      TieredRun memory(mesh, setting, setting.options), disk(mesh, setting, disk_options);
      memory.steps(0, 2);
      disk.steps(0, 2);
      const fs::path one = memory.engine->save(place / "memory"), two = disk.engine->save(place / "disk");
      expect_same_bytes(mesh, one, two, setting.name);

      // Either goes on from what the other has saved.
      TieredRun resumed(mesh, setting, disk_options);
      resumed.engine->load(one);
      memory.engine->load(two);
      for (TieredRun* const run : {&memory, &disk, &resumed}) run->steps(2, 4);
      const fs::path after = memory.engine->save(place / "memory");
      expect_same_bytes(mesh, after, resumed.engine->save(place / "resumed"), setting.name + ", resumed");
      expect_same_bytes(mesh, after, disk.engine->save(place / "disk"), setting.name + ", gone on");
    }
  });
}

TEST_P(Tiers, AStepMovesWhatThePlanSays) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const Setting& setting : settings_for(mesh.size())) {
      zero::EngineOptions options = all_on_disk(setting.options, folder.path(), mesh.size());
      options.offload.write_behind = false;  // what is written is there when a step ends
      if (options.budget_bytes < 0) options.budget_bytes = 1 << 30;  // a unit is gathered once a step
      TieredRun run(mesh, setting, options);
      run.steps(0, 3);
      const zero::DiskStats before = run.engine->stats().disk;
      run.steps(3, 4);
      const zero::DiskStats after = run.engine->stats().disk;
      const zero::RankPlan& plan = run.engine->plan().rank;
      const auto expect_moved = [&](int64_t bytes, int64_t planned) {
        EXPECT_LE(bytes, planned) << setting.name;
        // The last ranks may have pieces of padding alone, which no step touches.
        if (mesh.rank() == 0) {
          EXPECT_EQ(bytes, planned) << setting.name;
        }
      };
      expect_moved(after.written_bytes - before.written_bytes, plan.step_written_bytes);
      // Without a budget the model's order decides, and it is not the one that the plan plays.
      if (options.budget_bytes > 0) expect_moved(after.read_bytes - before.read_bytes, plan.step_read_bytes);
      EXPECT_EQ(after.ring_bytes, plan.ring_bytes) << setting.name;
      EXPECT_LE(run.engine->stats().peak_resident_bytes, plan.gather_window_bytes) << setting.name;
    }
  });
}

TEST_P(Tiers, WhatHappensBetweenStepsSeesTheSameValues) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const zero::Dtype dtype : {zero::Dtype::f32, zero::Dtype::bf16}) {
      const Setting setting{.name = "", .options = {.stage = 3, .dtype = dtype, .accumulation_steps = 2}};
      zero::EngineOptions on_disk = all_on_disk(setting.options, folder.path(), mesh.size());
      on_disk.offload.step_in_backward = zero::StepInBackward::Off;  // which would use up gradients
      TieredRun memory(mesh, setting, setting.options), disk(mesh, setting, on_disk);
      const auto expect_equal = [&](auto of) { EXPECT_TRUE(torch::equal(of(memory), of(disk))); };
      const auto both = [&](auto act) { act(memory), act(disk); };
      const auto modify = [](TieredRun& run) {
        const zero::GatherScope scope(*run.engine, zero::Access::Modify);
        const torch::NoGradGuard no_grad;
        run.model->norm->weight.mul_(1.5);
      };
      const auto value = [](const char* name) {
        return [name](TieredRun& run) { return run.engine->full_parameter(name); };
      };
      both([](TieredRun& run) { run.steps(0, 1); });
      both(modify);
      expect_equal(value("norm.weight"));
      expect_equal([](TieredRun& run) {
        const zero::GatherScope scope(*run.engine, zero::Access::Read);
        return run.model->embedding->weight.clone();
      });
      // A pass that is given up, an evaluation inside the next one, and what it has added up so far.
      both([](TieredRun& run) {
        run.engine->backward(run.loss(7));
        run.engine->abandon_pass();
        run.engine->backward(run.loss(8));
      });
      expect_equal([](TieredRun& run) {
        const torch::NoGradGuard no_grad;
        return run.loss(9).clone();
      });
      both([](TieredRun& run) { run.engine->backward(run.loss(10)); });
      expect_equal([](TieredRun& run) { return run.engine->full_gradient("layers.1.up.weight"); });
      expect_equal([](TieredRun& run) { return run.engine->full_gradient("embedding.weight"); });
      both([](TieredRun& run) { run.engine->step(); });
      for (const char* name : {"embedding.weight", "layers.0.down.bias"}) expect_equal(value(name));
      both([&](TieredRun& run) { run.engine->begin_save(folder.path() / (&run == &disk ? "d" : "m")); });
      both([](TieredRun& run) { run.steps(4, 5); });
      both([](TieredRun& run) { run.engine->finish_save(); });
      expect_equal(value("embedding.weight"));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Tiers, ::testing::Values(1, 2, 3));

TEST(TiersOfParameters, WhatCannotBeOnDiskIsSaid) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    const auto make = [&](int stage, int64_t piece_numel) {
      zero::EngineOptions options{.stage = stage};
      options.tiers.parameter = Tier::Disk;
      options.offload.path = folder.path();
      options.offload.piece_numel = piece_numel;
      TieredRun run(mesh, {}, options);
    };
    EXPECT_ERROR(make(2, 4096), Unsupported, "stage 2 keeps all parameters on each of 2 ranks");
    EXPECT_ERROR(make(3, 1024), Config, "expected a multiple of 2048, got 1024");
    make(3, 4096);
  });
}

// On CPU the host's memory is the device's: it is accepted, and nothing is on disk.
TEST(TiersOfParameters, TheHostIsTheDeviceOnCpu) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    zero::EngineOptions options{.stage = 2};
    options.tiers = {Tier::Host, Tier::Host, Tier::Host, Tier::Host};
    TieredRun run(mesh, {}, options);
    run.steps(0, 1);
    EXPECT_TRUE(run.engine->stats().disk.transport.empty());
    EXPECT_EQ(run.engine->plan().rank.offloaded_bytes, 0);
  });
}

}  // namespace
