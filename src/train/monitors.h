#pragma once
// A run's figures for programs that draw them while it goes on: TensorBoard's event files, tables in CSV and
// offline runs of W&B, with DeepSpeed's names of directories, tags and columns. Their x is the number of
// samples trained on, as there.

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "train/append_file.h"
#include "train/event_file.h"
#include "train/wandb_run.h"
#include "zero/config.h"
#include "zero/evaluate.h"
#include "zero/train.h"

namespace zero::training {

/// The directory of a monitor: output_path/job_name, where output_path "" is `name` in the run's directory.
std::filesystem::path monitor_directory(const MonitorConfig& monitor, const Config& config,
                                        const std::string& name);

/// A file for each tag, "Train/Samples/lr" in Train_Samples_lr.csv with the columns step and lr.
class CsvTables {
 public:
  /// Rows beyond `samples` that files of the directory hold, and unfinished ones, are taken out as they are
  /// opened. Throws Io.
  CsvTables(std::filesystem::path directory, int64_t samples);
  void add(int64_t samples, EventFile::Scalars scalars);

 private:
  AppendFile& file_of(const std::string& tag);

  std::filesystem::path directory_;
  int64_t first_samples_;
  std::map<std::string, AppendFile> files_;
};

/// Those that the configuration switches on. One rank has them. Not for several threads.
class Monitors {
 public:
  /// `samples`: trained on before. Throws Io.
  Monitors(const Config& config, int64_t samples);
  void step(const StepReport& report, int64_t samples);
  void evaluation(const EvalResult& result, int64_t samples);
  /// The run is over and went well. Throws Io.
  void finish();

 private:
  void add(int64_t samples, const std::vector<std::pair<std::string, double>>& scalars);

  bool scales_losses_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<CsvTables> tables_;
  std::unique_ptr<WandbRun> wandb_;
};

}  // namespace zero::training
