// Everything on disk, and units updated in backward: gradients are used up in memory, with the same bits as
// where nothing is on disk; and what a step in place, or a gradient that is no more, does not allow is said.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <limits>

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
using zero::StepInBackward;
using zero::Tier;

constexpr int64_t kSpentWords = 97, kSpentWidth = 48;
constexpr int kSpentSamples = 12;

struct Spending {
  std::string name;
  zero::EngineOptions options;
  StepInBackward how = StepInBackward::On;
  bool in_8bit = false, freezes = false;  // the first block
};

zero::EngineOptions wholly_on_disk(const Spending& spending, const fs::path& path, int ranks) {
  zero::EngineOptions options = spending.options;
  const bool sharded = options.stage == 3 || ranks == 1;
  options.tiers = {.parameter = sharded ? Tier::Disk : Tier::Device,
                   .gradient = Tier::Disk,
                   .master = Tier::Disk,
                   .optimizer = Tier::Disk};
  options.offload = {.path = path, .buffer_count = 3, .piece_numel = 2048, .block_bytes = 4096};
  options.offload.step_in_backward = spending.how;
  return options;
}

struct SpendingRun {
  SpendingRun(const zero::Mesh& job, const Spending& spending, const zero::EngineOptions& options)
      : mesh(job), model((torch::manual_seed(1), kSpentWords), kSpentWidth, 3) {
    if (spending.freezes)
      for (Tensor& parameter : model->layers[0]->parameters()) parameter.requires_grad_(false);
    model->embedding->weight.register_hook([this](const Tensor& gradient) {
      if (fails) throw std::runtime_error("as asked");
      return is_infinite ? gradient * std::numeric_limits<float>::infinity() : gradient;
    });
    engine = std::make_unique<zero::Engine>(*model, zero::AdamW{.lr = 1e-2, .states_8bit = spending.in_8bit},
                                            options, job);
  }
  Tensor loss(int number) {
    const int each = kSpentSamples / mesh.size();
    const Batch batch = batch_of(number, kSpentSamples, kSpentWords).rows(mesh.rank() * each, each);
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
  const zero::RankPlan& plan() const { return engine->plan().rank; }
  zero::Mesh mesh;
  SmallNet model;
  std::unique_ptr<zero::Engine> engine;
  bool is_infinite = false, fails = false;
};

void expect_equal_bytes(const zero::Mesh& mesh, const fs::path& a, const fs::path& b,
                        const std::string& what) {
  if (mesh.rank() == 0) {
    EXPECT_TRUE(same(read_all(a), read_all(b))) << what;
  }
  mesh.world().barrier("compared");
}

std::vector<Spending> spendings() {
  std::vector<Spending> all;
  for (const StepInBackward how : {StepInBackward::On, StepInBackward::InPlace})
    for (int stage = 0; stage <= 3; ++stage)
      for (const int micro : {1, 3})
        for (const zero::Dtype dtype : {zero::Dtype::f32, zero::Dtype::bf16}) {
          Spending one{.name = std::string(how == StepInBackward::On ? "on" : "in place") + ", stage " +
                               std::to_string(stage) + ", " + std::to_string(micro) + " micro-batches, " +
                               std::string(to_string(dtype)),
                       .options = {.stage = stage, .dtype = dtype, .accumulation_steps = micro},
                       .how = how};
          one.options.group_numel = 200;
          if (how == StepInBackward::On && dtype == zero::Dtype::f32) continue;
          if (stage != 1) all.push_back(one);
          if (stage != 3) continue;
          one.in_8bit = true;
          one.name += ", 8 bits";
          all.push_back(one);
          if (dtype == zero::Dtype::f32) continue;
          one.freezes = true;
          one.options.overlap = false;
          one.name += ", frozen, no overlap";
          all.push_back(one);
          one.options.overlap = true;
          one.options.accumulation_dtype = zero::Dtype::bf16;
          one.options.budget_bytes = 0;
          one.name += ", sums in bf16, no budget";
          all.push_back(one);
        }
  return all;
}

class StepFromDisk : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, StepFromDisk, ::testing::Values(1, 2, 3));

TEST_P(StepFromDisk, ChangesNoBit) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const Spending& spending : spendings()) {
      const fs::path place = folder.path() / spending.name;
      const zero::EngineOptions on_disk = wholly_on_disk(spending, folder.path(), mesh.size());
      SpendingRun memory(mesh, spending, spending.options), disk(mesh, spending, on_disk);
      EXPECT_TRUE(disk.engine->plan().step_in_backward);
      for (int step = 0; step < 3; ++step) {
        memory.micro_batches(step);
        disk.micro_batches(step);
        // What was used up counts in the norm.
        EXPECT_EQ(memory.engine->step().clip().norm_before, disk.engine->step().clip().norm_before);
      }
      const fs::path one = memory.engine->save(place / "memory"), two = disk.engine->save(place / "disk");
      expect_equal_bytes(mesh, one, two, spending.name);
      if (mesh.size() == 1) {
        EXPECT_GT(disk.engine->stats().disk.pieces_ahead, 0) << spending.name;
      }

      // Either goes on from what the other has saved.
      SpendingRun resumed(mesh, spending, on_disk);
      resumed.engine->load(one);
      memory.engine->load(two);
      for (SpendingRun* const run : {&memory, &disk, &resumed}) run->steps(3, 5);
      const fs::path after = memory.engine->save(place / "memory");
      expect_equal_bytes(mesh, after, resumed.engine->save(place / "resumed"), spending.name + ", resumed");
      expect_equal_bytes(mesh, after, disk.engine->save(place / "disk"), spending.name + ", gone on");
    }
  });
}

TEST_P(StepFromDisk, MovesWhatThePlanSays) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const Spending& spending : spendings()) {
      zero::EngineOptions options = wholly_on_disk(spending, folder.path(), mesh.size());
      options.offload.write_behind = false;  // what is written is there when a step ends
      if (options.budget_bytes < 0) options.budget_bytes = 1 << 30;  // a unit is gathered once a step
      SpendingRun run(mesh, spending, options);
      constexpr int kSteps = 4;
      run.steps(0, 3);
      const zero::DiskStats before = run.engine->stats().disk;
      run.steps(3, 3 + kSteps);
      const zero::DiskStats after = run.engine->stats().disk;
      const int64_t written = after.written_bytes - before.written_bytes;
      EXPECT_LE(written, kSteps * run.plan().step_written_bytes) << spending.name;
      // The last ranks may have pieces of padding alone, which no step touches.
      if (mesh.rank() == 0) {
        EXPECT_EQ(written, kSteps * run.plan().step_written_bytes) << spending.name;
      }
      // Without a budget the model's order decides, and it is not the one that the plan plays. Some of the
      // next step's first pieces are there already.
      const int64_t read = after.read_bytes - before.read_bytes;
      if (options.budget_bytes > 0 && mesh.rank() == 0) {
        EXPECT_NEAR(static_cast<double>(read), static_cast<double>(kSteps * run.plan().step_read_bytes),
                    static_cast<double>(run.plan().ring_bytes))
            << spending.name;
      }
      EXPECT_EQ(after.ring_bytes, run.plan().ring_bytes) << spending.name;
    }
  });
}

TEST_P(StepFromDisk, AStepThatIsNotFiniteIsUndoneOrInPlaceLosesTheStates) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    const Spending undone{.name = "", .options = {.stage = 3, .dtype = at::kBFloat16}};
    SpendingRun memory(mesh, undone, undone.options),
        disk(mesh, undone, wholly_on_disk(undone, folder.path(), mesh.size()));
    for (SpendingRun* const run : {&memory, &disk})
      for (int step = 0; step < 5; ++step) {
        // One rank's is enough.
        run->is_infinite = step == 2 && mesh.rank() == mesh.size() - 1;
        run->micro_batches(step);
        EXPECT_EQ(run->engine->step().skipped(), step == 2);
      }
    const fs::path saved = memory.engine->save(folder.path() / "memory");
    expect_equal_bytes(mesh, saved, disk.engine->save(folder.path() / "disk"), "skipped");

    Spending in_place = undone;
    in_place.how = StepInBackward::InPlace;
    const zero::EngineOptions options = wholly_on_disk(in_place, folder.path(), mesh.size());
    SpendingRun lost(mesh, in_place, options);
    lost.engine->load(saved);
    lost.is_infinite = mesh.rank() == mesh.size() - 1;
    lost.micro_batches(5);
    EXPECT_ERROR(lost.engine->step(), Unsupported,
                 "embedding.weight on rank 0), and units were updated in place: their states are lost; "
                 "resume from the last "
                 "checkpoint");
    lost.is_infinite = false;
    EXPECT_ERROR(lost.loss(6), Usage, "make a new engine and load a checkpoint");
    EXPECT_ERROR(lost.engine->save(folder.path() / "lost"), Usage, "a step failed on its way");

    SpendingRun again(mesh, in_place, options);
    again.engine->load(saved);
    again.steps(5, 7);
    memory.steps(5, 7);
    expect_equal_bytes(mesh, memory.engine->save(folder.path() / "memory"),
                       again.engine->save(folder.path() / "again"), "resumed");
  });
}

TEST_P(StepFromDisk, ABackwardThatIsGivenUpNeverWasOrInPlaceLosesTheStates) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    Spending spending{.name = "", .options = {.stage = 3, .dtype = at::kBFloat16}};
    SpendingRun memory(mesh, spending, spending.options),
        disk(mesh, spending, wholly_on_disk(spending, folder.path(), mesh.size()));
    for (SpendingRun* const run : {&memory, &disk}) {
      run->steps(0, 1);
      run->micro_batches(1);
      run->engine->abandon_pass();
      if (mesh.size() == 1) {
        run->fails = true;
        EXPECT_THROW(run->micro_batches(2), std::exception);
        run->fails = false;
      }
      run->steps(3, 5);
    }
    expect_equal_bytes(mesh, memory.engine->save(folder.path() / "memory"),
                       disk.engine->save(folder.path() / "disk"), "given up");

    spending.how = StepInBackward::InPlace;
    const zero::EngineOptions options = wholly_on_disk(spending, folder.path(), mesh.size());
    SpendingRun lost(mesh, spending, options);
    lost.micro_batches(0);
    EXPECT_ERROR(lost.engine->abandon_pass(), Usage, "make a new engine and load a checkpoint");
    EXPECT_ERROR(lost.loss(1), Usage, "make a new engine and load a checkpoint");
    if (mesh.size() > 1) return;
    SpendingRun failed(mesh, spending, options);
    failed.fails = true;
    EXPECT_THROW(failed.micro_batches(0), std::exception);
    failed.fails = false;
    EXPECT_ERROR(failed.loss(1), Usage, "make a new engine and load a checkpoint");
  });
}

TEST_P(StepFromDisk, WhatComesTooLateIsSaid) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    for (const StepInBackward how : {StepInBackward::On, StepInBackward::InPlace}) {
      const Spending spending{.name = "", .options = {.stage = 3}, .how = how};
      SpendingRun memory(mesh, spending, spending.options),
          run(mesh, spending, wholly_on_disk(spending, folder.path(), mesh.size()));
      memory.steps(0, 1);
      run.steps(0, 1);
      run.micro_batches(1);
      zero::Engine& engine = *run.engine;
      const std::string name = "layers.1.up.weight";
      EXPECT_ERROR(engine.full_gradient(name), Usage, "layers.1.up.weight: its gradient was used up");
      EXPECT_ERROR(engine.set_learning_rate(1), Usage, "set it before backward()");
      EXPECT_ERROR(std::make_unique<zero::GatherScope>(engine, zero::Access::Modify), Usage,
                   "call step() first");
      EXPECT_ERROR(engine.set_full_optimizer_state(name, "exp_avg", torch::zeros({144, 48})), Usage,
                   "call step() first");
      if (how == StepInBackward::InPlace) {
        EXPECT_ERROR(run.loss(2), Usage, "parameters are part old, part new");
      }
      engine.step();
      memory.steps(1, 2);
      memory.engine->set_learning_rate(1e-3);
      engine.set_learning_rate(1e-3);
      memory.steps(2, 3);
      run.steps(2, 3);
      const std::string what = how == StepInBackward::On ? "on" : "in place";
      expect_equal_bytes(mesh, memory.engine->save(folder.path() / what / "memory"),
                         engine.save(folder.path() / what / "disk"), what);
    }
  });
}

TEST_P(StepFromDisk, LossesThatAreSumsAreWeighedBeforeTheLastBackward) {
  const DiskDirectory folder;
  run_ranks(GetParam(), [&](const zero::Mesh& mesh) {
    const Spending spending{.name = "",
                            .options = {.stage = 3, .dtype = at::kBFloat16, .accumulation_steps = 2},
                            .how = StepInBackward::InPlace};
    SpendingRun memory(mesh, spending, spending.options),
        disk(mesh, spending, wholly_on_disk(spending, folder.path(), mesh.size()));
    for (SpendingRun* const run : {&memory, &disk})
      for (int step = 0; step < 4; ++step) {
        for (int i = 0; i < 2; ++i)
          run->engine->backward_sum(run->loss(step * 2 + i) * (i + 2), i + 2 + mesh.rank());
        run->engine->step();
      }
    expect_equal_bytes(mesh, memory.engine->save(folder.path() / "memory"),
                       disk.engine->save(folder.path() / "disk"), "sums");
  });
}

TEST(StepFromDiskAlone, InPlaceTheFileHasOnePlaceAndNoGradients) {
  const DiskDirectory folder;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    Spending spending{.name = "",
                      .options = {.stage = 3, .dtype = at::kBFloat16},
                      .how = StepInBackward::InPlace,
                      .in_8bit = true};
    const auto file_of = [&](StepInBackward how) {
      spending.how = how;
      zero::EngineOptions options = wholly_on_disk(spending, folder.path(), mesh.size());
      options.offload.piece_numel = 1 << 20;
      const SpendingRun run(mesh, spending, options);
      EXPECT_EQ(run.plan().offloaded_bytes,
                how == StepInBackward::Off
                    ? run.plan().state_bytes()
                    : run.plan().parameter_bytes + run.plan().master_bytes + run.plan().optimizer_bytes);
      return run.plan().file_bytes;
    };
    const int64_t in_place = file_of(StepInBackward::InPlace);
    EXPECT_EQ(file_of(StepInBackward::On), 2 * in_place);
    EXPECT_EQ(file_of(StepInBackward::Auto), 2 * in_place);
    EXPECT_GT(file_of(StepInBackward::Off), in_place);

    spending.options.dtype = at::kHalf;
    spending.options.loss_scaling = zero::LossScaling{};
    EXPECT_ERROR(file_of(StepInBackward::InPlace), Config, "loss scaling skips");
    spending.options = {.stage = 3, .gradient_clipping = 1};
    EXPECT_ERROR(file_of(StepInBackward::InPlace), Config, "gradient_clipping needs the norm");
  });
}

}  // namespace
