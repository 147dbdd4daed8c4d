#pragma once
// Offline runs of Weights & Biases: what `wandb sync DIRECTORY` sends, written without it. The file is
// LevelDB's log format (blocks of 32 KiB, records cut at their ends) behind a header of its own, with plain
// CRC-32 for LevelDB's masked CRC-32C; a record is a message of wandb_internal.proto.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/append_file.h"
#include "train/event_file.h"

namespace zero::training {

/// `bytes` as records of such a log that stands at `offset` of its file: padding, headers and parts.
std::string wandb_log_record(std::string_view bytes, uint64_t offset);

struct WandbAbout {
  std::string team, group, project, name;                        // "": none
  std::vector<std::pair<std::string, std::string>> config = {};  // keys, and their values as JSON
};

/// DIRECTORY/offline-run-YYYYMMDD_HHMMSS-ID/run-ID.wandb. Not for several threads.
class WandbRun {
 public:
  /// Begins a run. Throws Io naming file and cause.
  WandbRun(const std::filesystem::path& directory, const WandbAbout& about);

  /// Figures of a step, which never falls. Those of one step make one row of its history, which is written
  /// when the next step begins. Throws Io.
  void add(int64_t step, EventFile::Scalars scalars);
  /// Writes the last row and that the run has ended well. Nothing may be added then. Throws Io.
  void finish();

 private:
  WandbRun(const std::filesystem::path& directory, const WandbAbout& about, std::string id);

  void write_row();
  void write_record(uint32_t field, std::string_view message);
  double runtime_s() const;

  std::string id_;
  std::chrono::system_clock::time_point begin_;
  AppendFile file_;
  uint64_t file_bytes_ = 0;
  int64_t records_ = 0;
  std::optional<int64_t> step_;  // of row_
  std::vector<std::pair<std::string, double>> row_;
};

}  // namespace zero::training
