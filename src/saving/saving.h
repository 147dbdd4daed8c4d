#pragma once
// Saving a sharded model and loading one: what Engine::save, begin_save, finish_save and load do. All of it
// is collective; of several errors all ranks throw the first.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "saving/save_job.h"
#include "sharding/sharded_model.h"
#include "zero/loss_scale.h"

namespace zero::detail {

/// How far training has come: optimizer steps taken, and skipped.
struct StepCounts {
  int64_t steps = 0, skipped_steps = 0;
  std::optional<LossScaleState> loss_scale = {};
};

struct SaveOptions {
  std::string metadata;  // a JSON object
  int keep_last = 0;
  std::string frozen_from;  // not empty: frozen parameters are left out
};

std::filesystem::path save(ShardedModel& model, const StepCounts& counts,
                           const std::filesystem::path& directory, const SaveOptions& options);
std::unique_ptr<SaveJob> begin_save(ShardedModel& model, const StepCounts& counts,
                                    const std::filesystem::path& directory, const SaveOptions& options,
                                    bool in_background);
/// Ends a save in the background; `job` is null afterwards unless it goes on.
std::optional<std::filesystem::path> finish_save(ShardedModel& model, std::unique_ptr<SaveJob>& job,
                                                 bool wait);

struct Loaded {
  StepCounts counts;
  int64_t bytes = 0;     // read of tensors on this rank
  std::string metadata;  // the caller's, as given to save()
};
/// Throws, with nothing changed, where the checkpoint does not fit the model.
Loaded load(ShardedModel& model, const std::filesystem::path& checkpoint);

}  // namespace zero::detail
