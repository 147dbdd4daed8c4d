// "auto" in a run: where states are is chosen within a rank's memory, changes no loss, and what cannot be is
// an error before any rank is there.
#include <gtest/gtest.h>
#include <unistd.h>

#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "support/small_run.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/model_spec.h"
#include "zero/plan_report.h"
#include "zero/train.h"

namespace zero {
namespace {
using namespace zero::testing;

std::vector<std::string> with(std::vector<std::string> all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

const std::vector<std::string> kWider{"model.width=48", "bf16.enabled=true", "gradient_clipping=0.5"};

TEST(TrainPlacement, AutoKeepsToItsMemoryAndChangesNoLoss) {
  const SmallRun small;
  const DiskDirectory disk;
  const Config memory = small.config(2, kWider, "memory");
  train_on(2, memory);
  const int64_t all = plan_from_config(memory, trained_spec(memory), 2).total_bytes(3);
  const Config chosen =
      small.config(2,
                   with(kWider, {"offload.optimizer=auto", "offload.memory=" + std::to_string(all - 60'000),
                                 "offload.path=" + disk.path().string(), "offload.buffer_count=2",
                                 "offload.piece_numel=1024"}),
                   "chosen");
  const ConfigPlan plan = plan_from_config(chosen, trained_spec(chosen), 2);
  ASSERT_TRUE(plan.tiers.has_value());
  EXPECT_GT(plan.tiers->disk_bytes, 0);
  EXPECT_LE(plan.total_bytes(3), all - 60'000);
  train_on(2, chosen);
  EXPECT_EQ(course_of(small.path() / "chosen"), course_of(small.path() / "memory"));
}

TEST(TrainPlacement, WhatCannotBeIsAnErrorBeforeAnyRank) {
  const SmallRun small;
  const DiskDirectory disk;
  const auto checked = [&](const std::vector<std::string>& overrides) {
    check_run(small.config(2, overrides), 2);
  };
  EXPECT_ERROR(checked({"offload.optimizer=disk", "offload.path=/dev/shm"}), Config,
               "offload.path: /dev/shm is in memory (tmpfs)");
  EXPECT_ERROR(checked({"offload.optimizer=disk", "offload.path=/nowhere/at/all"}), Config,
               "offload.path: /nowhere/at/all cannot be used");
  // No directory, and one that this user may not write to.
  EXPECT_ERROR(
      checked({"offload.optimizer=disk", "offload.path=" + (small.path() / "train.tokens").string()}), Io,
      "train.tokens takes no file: Not a directory");
  if (::geteuid() != 0) {
    const std::filesystem::path closed = disk.path() / "closed";
    std::filesystem::create_directory(closed);
    std::filesystem::permissions(closed, std::filesystem::perms::owner_read);
    EXPECT_THROW(checked({"offload.optimizer=disk", "offload.path=" + closed.string()}), Error);
  }
  EXPECT_ERROR(
      checked({"activation_checkpointing.offload=disk", "activation_checkpointing.offload_path=/dev/shm"}),
      Config, "activation_checkpointing.offload_path: /dev/shm is in memory (tmpfs)");
  EXPECT_ERROR(checked({"activation_checkpointing.recompute=auto", "activation_checkpointing.offload=auto",
                        "activation_checkpointing.offload_path=/nowhere/at/all"}),
               Config, "activation_checkpointing.offload_path: /nowhere/at/all cannot be used");
  EXPECT_ERROR(
      checked({"offload.optimizer=auto", "offload.memory=10000", "offload.path=" + disk.path().string()}),
      Config, "a rank's memory is 10.0 kB, but wherever states are, ");
  EXPECT_ERROR(checked({"model.layers=2000", "model.width=16384", "model.heads=128", "offload.optimizer=disk",
                        "offload.path=" + disk.path().string()}),
               Io, "free, the states of 2 ranks take ");
  EXPECT_NO_THROW(checked({"offload.optimizer=disk", "offload.path=" + disk.path().string()}));
}

}  // namespace
}  // namespace zero
