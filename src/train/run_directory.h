#pragma once
// The directory of a run: refuses to mix two runs, and never deletes anything.

#include <filesystem>
#include <string>
#include <vector>

#include "zero/config.h"
#include "zero/train.h"

namespace zero::training {

/// In the run's directory: an object with `step` and `checkpoint` for each time that the run went on from
/// one.
inline constexpr const char* kResumesFile = "resumes.jsonl";

/// Where the parts of a run lie.
struct RunPaths {
  std::filesystem::path run, config, metrics, checkpoints;  // metrics empty: not wanted
};
RunPaths paths_of(const Config& config);

/// The checkpoint to go on from; empty: from the beginning. Throws Config where the directory holds a run
/// that options neither resume nor overwrite, naming what differs, and where the checkpoint is of another
/// model; Io and Corrupt for a checkpoint that cannot be read. Changes nothing.
std::filesystem::path find_start(const Config& config, const TrainOptions& options);

/// Keys of `model` and `data` that differ: "model.width 16, now 32".
std::vector<std::string> differences(const Config& before, const Config& now);

/// Holds a run directory against other processes while it lives.
class RunLock {
 public:
  /// Makes the directory where needed. Throws Config where another process trains in it, Io.
  explicit RunLock(const std::filesystem::path& run);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// Prepares the directory for a run that begins after `step`: writes config.json, gives what is in the way of
/// a fresh start other names, cuts the metrics of a resumed one. Throws Io, Corrupt.
void begin_run(const Config& config, const std::filesystem::path& checkpoint, int64_t step,
               const TrainOptions& options);

}  // namespace zero::training
