// Disks that fail while an engine trains, and processes that are killed while they write: a named error on
// every rank or the same bits, never a wrong number.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>
#include <iterator>
#include <random>

#include "support/checkpoint_files.h"
#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "support/faulty_disks.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "support/soak.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace {
using namespace zero::testing;
namespace fs = std::filesystem;

constexpr int64_t kFaultWords = 67, kFaultWidth = 32;
constexpr int kFaultRows = 12, kFaultSteps = 6;

/// How the engine holds its states.
struct Way {
  const char* name;
  double clipping;          // 0: units are updated in backward
  bool everything = false;  // parameters and gradients too
  zero::StepInBackward how = zero::StepInBackward::Auto;
};
constexpr Way kWays[] = {{"after backward", 1},
                         {"in backward", 0},
                         {"after backward, everything", 1, true},
                         {"in backward, everything", 0, true},
                         {"in place, everything", 0, true, zero::StepInBackward::InPlace}};
constexpr int kWayCount = std::size(kWays);

zero::EngineOptions options_of(const Way& way, const fs::path& path, const DiskFaults* faults) {
  zero::EngineOptions options{.stage = 3, .dtype = at::kBFloat16, .gradient_clipping = way.clipping};
  if (path.empty()) return options;
  options.tiers = {.master = zero::Tier::Disk, .optimizer = zero::Tier::Disk};
  if (way.everything) options.tiers.parameter = options.tiers.gradient = zero::Tier::Disk;
  options.offload = {.path = path, .buffer_count = 3, .piece_numel = 2048, .block_bytes = 8192};
  options.offload.step_in_backward = way.how;
  if (faults != nullptr) options.offload.devices = std::make_shared<FaultyDisks>(*faults);
  return options;
}

struct FaultRun {
  FaultRun(const zero::Mesh& job, const zero::EngineOptions& options)
      : mesh(job),
        model((torch::manual_seed(5), kFaultWords), kFaultWidth, 3),
        engine(*model, zero::AdamW{.lr = 1e-2}, options, job) {}
  void step(int number) {
    const int each = kFaultRows / mesh.size();
    const Batch batch = batch_of(number, kFaultRows, kFaultWords).rows(mesh.rank() * each, each);
    engine.backward(engine.forward([&] { return model->loss(batch.tokens, batch.targets); }));
    engine.step();
  }
  zero::Mesh mesh;
  SmallNet model;
  zero::Engine engine;
};

/// All steps with everything in memory; the checkpoint after them.
fs::path reference(int ranks, const Way& way, const fs::path& folder) {
  run_ranks(ranks, [&](const zero::Mesh& mesh) {
    FaultRun run(mesh, options_of(way, {}, nullptr));
    for (int step = 0; step < kFaultSteps; ++step) run.step(step);
    run.engine.save(folder);
  });
  return zero::latest_checkpoint(folder);
}

/// What one rank knows in the end: "" for the right values, or its error.
std::string outcome_of(const RankResult& rank) { return rank.error; }

class DiskFaultsInTraining : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, DiskFaultsInTraining, ::testing::Values(1, 2));

TEST_P(DiskFaultsInTraining, AreAnErrorOfEveryRankOrChangeNothing) {
  const int ranks = GetParam();
  const DiskDirectory folder;
  struct Case {
    const char* name;
    DiskFaults faults;
    const char* says;  // null: the run goes on with the same bits
  };
  const Case cases[] = {{"short transfers", {.most_bytes = 4096, .interrupted = 5, .try_again = 5}, nullptr},
                        {"reads fail", {.error = EIO, .error_from = 40}, "cannot read"},
                        {"writes fail", {.error = EIO, .error_from = 60, .of_writes = true}, "cannot write"},
                        {"full", {.error = ENOSPC, .error_from = 45, .of_writes = true}, "errno 28"},
                        {"a flipped bit", {.flipped_read = 35}, "are not those that were written"}};
  for (const Way& way : kWays) {
    const Tensors expected = read_all(reference(ranks, way, folder.path() / way.name));
    for (const Case& one : cases) {
      const std::string what = std::string(one.name) + ", " + way.name;
      const fs::path saved = folder.path() / what;
      const auto results = collect_ranks(ranks, [&](const zero::Mesh& mesh) {
        // One rank's disk.
        const bool fails = mesh.rank() == mesh.size() - 1;
        FaultRun run(mesh, options_of(way, folder.path(), fails ? &one.faults : nullptr));
        for (int step = 0; step < kFaultSteps; ++step) run.step(step);
        run.engine.save(saved);
      });
      for (size_t rank = 0; rank < results.size(); ++rank) {
        const std::string error = outcome_of(results[rank]);
        const std::string who = what + ", rank " + std::to_string(rank) + ": " + error;
        EXPECT_EQ(error.empty(), one.says == nullptr) << who;
        EXPECT_NE(results[rank].exit, -1) << who;
        if (one.says == nullptr) continue;
        // The rank itself names what failed where; another one says which rank that was.
        if (rank + 1 == results.size()) {
          EXPECT_NE(error.find(one.says), std::string::npos) << who;
          EXPECT_NE(error.find("unit "), std::string::npos) << who;
        } else {
          EXPECT_NE(error.find("rank 1"), std::string::npos) << who;
        }
      }
      if (one.says == nullptr) {
        EXPECT_TRUE(same(read_all(zero::latest_checkpoint(saved)), expected)) << what;
      }
    }
  }
}

TEST(DiskFaultsInAStep, AnEngineWhoseStatesArePartOldPartNewGoesNoFurther) {
  const DiskDirectory folder;
  run_ranks(1, [&](const zero::Mesh& mesh) {
    const DiskFaults faults{.flipped_read = 100};  // one that comes and goes
    FaultRun run(mesh, options_of(kWays[0], folder.path(), &faults));
    const auto steps = [&] {
      for (int step = 0; step < kFaultSteps; ++step) run.step(step);
    };
    EXPECT_ERROR(steps(), Corrupt, "are not those that were written");
    EXPECT_ERROR(run.step(0), Usage, "a step failed on its way");
    EXPECT_ERROR(run.engine.save(folder.path() / "torn"), Usage, "a step failed on its way");
  });
}

/// Trains to the end from the last checkpoint there is, with one every second step.
void train_on(const zero::Mesh& mesh, const zero::EngineOptions& options, const fs::path& folder) {
  FaultRun run(mesh, options);
  const fs::path latest = zero::latest_checkpoint(folder);
  if (!latest.empty()) run.engine.load(latest);
  for (auto step = static_cast<int>(run.engine.stats().steps); step < kFaultSteps; ++step) {
    run.step(step);
    if (step % 2 == 1) run.engine.save(folder);
  }
}

TEST(DiskFaultsInTraining, AProcessKilledAtAnyWriteEndsWithTheSameBitsAtAnyMoment) {
  const DiskDirectory folder;
  void* const shared =
      mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const writes = new (shared) std::atomic<int>(0);
  struct Trained {
    Tensors values;
    int writes;  // of the rank that is killed
  };
  std::map<std::pair<int, int>, Trained> expected;
  for (const int ranks : {1, 2})
    for (int way = 0; way < kWayCount; ++way) {
      const fs::path whole = folder.path() / ("whole " + std::to_string(ranks * kWayCount + way));
      *writes = 0;
      run_ranks(ranks, [&](const zero::Mesh& mesh) {
        const DiskFaults counted{.writes = mesh.rank() == 0 ? writes : nullptr};
        train_on(mesh, options_of(kWays[way], folder.path(), &counted), whole);
      });
      expected[{ranks, way}] = {read_all(zero::latest_checkpoint(whole)), *writes};
      const Tensors in_memory =
          read_all(reference(ranks, kWays[way], folder.path() / (whole.string() + " memory")));
      EXPECT_TRUE(same(expected[{ranks, way}].values, in_memory));
    }
  std::mt19937 random(17);
  int killed = 0;
  const int moments = soak_or(20, 200);
  for (int moment = 0; moment < moments; ++moment) {
    const int ranks = 1 + moment % 2, way = moment / 2 % kWayCount;
    const Trained& right = expected.at({ranks, way});
    const int victim = moment / 2 % ranks;
    const DiskFaults dies{.killed_at_write =
                              static_cast<int>(random() % static_cast<unsigned>(right.writes))};
    const fs::path place = folder.path() / "killed";
    fs::remove_all(place);
    const auto results = collect_ranks(ranks, [&](const zero::Mesh& mesh) {
      train_on(mesh, options_of(kWays[way], folder.path(), mesh.rank() == victim ? &dies : nullptr), place);
    });
    const int exit = results[static_cast<size_t>(victim)].exit;
    EXPECT_TRUE(exit == 128 + SIGKILL || exit == 0) << exit;  // the ranks' writes differ by a few
    killed += exit != 0;
    run_ranks(ranks, [&](const zero::Mesh& mesh) {
      train_on(mesh, options_of(kWays[way], folder.path(), nullptr), place);
    });
    EXPECT_TRUE(same(read_all(zero::latest_checkpoint(place)), right.values))
        << "moment " << moment << ", killed at write " << dies.killed_at_write;
  }
  EXPECT_GT(killed, moments / 2);
  munmap(shared, sizeof(std::atomic<int>));
}

}  // namespace
