#include "train/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/output_file.h"
#include "checkpoint/file_io.h"
#include "train/adapter_files.h"
#include "train/append_file.h"
#include "train/checkpoint_metadata.h"
#include "train/metrics.h"
#include "train/run_files.h"
#include "zero/checkpoint.h"
#include "zero/error.h"
#include "zero/load_model.h"

namespace zero::training {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kRemedy =
    "--resume auto goes on with it (not with another model), --overwrite starts anew and keeps it under "
    "other "
    "names, --run-dir DIR goes elsewhere";

bool has_metrics(const RunPaths& paths) {
  std::error_code error;
  return !paths.metrics.empty() && fs::exists(paths.metrics, error) &&
         fs::file_size(paths.metrics, error) > 0;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

// What keeps a fresh start out of the directory; "" if nothing does.
std::string occupied(const Config& config, const RunPaths& paths) {
  const fs::path newest = latest_checkpoint(paths.checkpoints);
  if (newest.empty() && !has_metrics(paths)) return {};
  std::error_code error;
  if (!fs::exists(paths.config, error)) return "it holds a run without " + std::string(kConfigFile);
  const std::string changed = joined(differences(read_config(paths.run), config));
  if (!changed.empty()) return "it holds a run of another configuration: " + changed;
  return "it holds a run already" + (newest.empty() ? "" : ", with checkpoint " + newest.filename().string());
}

void require_same_model(const Config& config, const fs::path& checkpoint) {
  const Config before = read_metadata(checkpoint).config;
  std::vector<std::string> changed;
  for (const std::string& change : differences(before, config)) {
    // What decides which tensors there are and what they mean; a seed and dropout do not.
    for (const char* key : {"model.type ", "model.vocab_size ", "model.context_length ", "model.layers ",
                            "model.width ", "model.heads "})
      if (change.starts_with(key)) changed.push_back(change);
  }
  require(changed.empty(), ErrorKind::Config, checkpoint.string(),
          "it is of another model: " + joined(changed), "resume with the configuration it was made with");
}

bool is_of_run(const fs::path& checkpoint, const RunPaths& paths) {
  return fs::weakly_canonical(checkpoint / "..") == fs::weakly_canonical(paths.checkpoints / ".");
}

// Going back to an older checkpoint leaves newer ones of a future that will not come: "auto" must not find
// them.
void set_aside_newer(const fs::path& checkpoint, const RunPaths& paths) {
  for (;;) {
    const fs::path newest = latest_checkpoint(paths.checkpoints);
    if (newest.empty() || fs::equivalent(newest, checkpoint)) return;
    set_aside(newest);
  }
}

// A checkpoint directory of the run itself cannot be renamed as a whole.
void require_own_folder(const Config& config, const RunPaths& paths) {
  require(fs::weakly_canonical(paths.checkpoints) != fs::weakly_canonical(paths.run), ErrorKind::Config,
          config.place("checkpoint.directory"),
          "checkpoint.directory: expected a directory of its own to start over, got the run directory",
          "give another --run-dir");
}

// A new run would give them another name, and write its own in their place.
void require_other_adapters(const Config& config, const RunPaths& paths) {
  std::error_code error;
  const bool same =
      !config.lora.from.empty() && fs::equivalent(config.lora.from, paths.run / kAdapterDirectory, error);
  require(!same || error, ErrorKind::Config, config.place("lora.from"),
          "lora.from: " + config.lora.from + " is where this run writes its own adapters",
          "copy it elsewhere, or give another --run-dir");
}

}  // namespace

RunPaths paths_of(const Config& config) {
  const fs::path run = config.run.directory;
  const auto& metrics = config.logging.metrics_file;
  return {.run = run,
          .config = run / kConfigFile,
          .metrics = metrics.empty() ? fs::path() : run / metrics,
          .checkpoints = run / config.checkpoint.directory};
}

std::vector<std::string> differences(const Config& before, const Config& now) {
  std::vector<std::string> changed;
  const Json old_json = Json::parse(to_json(stored_form(before))),
             new_json = Json::parse(to_json(stored_form(now)));
  for (const char* section : {"model", "data"}) {
    const Json old_values = old_json.value(section, Json::object());
    const Json new_values = new_json.value(section, Json::object());
    for (const auto& [key, value] : new_values.items()) {
      const Json old_value = old_values.value(key, Json());
      if (old_value != value)
        changed.push_back(std::string(section) + "." + key + " " + old_value.dump() + ", now " +
                          value.dump());
    }
  }
  return changed;
}

fs::path find_start(const Config& config, const TrainOptions& options) {
  const RunPaths paths = paths_of(config);
  require(options.resume.empty() || !options.overwrite, ErrorKind::Config, "--overwrite",
          "it starts anew and --resume goes on", "give one of the two");
  std::error_code error;
  require(!fs::exists(paths.run, error) || fs::is_directory(paths.run, error), ErrorKind::Config,
          paths.run.string(), "it is not a directory", "give another run.directory");
  if (options.overwrite) {
    require_own_folder(config, paths);
    require_other_adapters(config, paths);
    return {};
  }
  if (options.resume.empty()) {
    const std::string run = occupied(config, paths);
    require(run.empty(), ErrorKind::Config, paths.run.string(), run, kRemedy);
    require_other_adapters(config, paths);
    return {};
  }
  const bool newest = options.resume == "auto";
  fs::path checkpoint = newest ? latest_checkpoint(paths.checkpoints) : find_checkpoint(options.resume);
  if (checkpoint.empty()) {
    require_other_adapters(config, paths);
    return {};
  }
  if (!is_of_run(checkpoint, paths)) {
    const std::string run = occupied(config, paths);
    require(run.empty(), ErrorKind::Config, paths.run.string(),
            run + ", and " + checkpoint.string() + " is of another one", "give another --run-dir");
  }
  require_same_model(config, checkpoint);
  return checkpoint;
}

RunLock::RunLock(const fs::path& run) {
  std::error_code error;
  fs::create_directories(run, error);
  require(!error, ErrorKind::Io, run.string(), "cannot make the directory: " + error.message(),
          "give another run.directory");
  const fs::path path = run / ".lock";
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_errno(path, "open");
  // Where the file system knows no locks there is nothing to hold.
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(descriptor_);
  fail(ErrorKind::Config, run.string(), "another process is training in it",
       "wait for it, or give another --run-dir");
}

RunLock::~RunLock() { ::close(descriptor_); }

namespace {

// RUN/resumes.jsonl: a line for each time that the run went on, for pictures of it.
void note_resume(const RunPaths& paths, const fs::path& checkpoint, int64_t step) {
  const fs::path file = paths.run / kResumesFile;
  std::error_code error;
  if (checkpoint.empty()) {
    if (fs::exists(file, error)) set_aside(file);
    return;
  }
  if (fs::exists(file, error)) cut_metrics(file, step);
  const nlohmann::ordered_json line = {{"step", step}, {"checkpoint", checkpoint.string()}};
  AppendFile(file).append(line.dump() + "\n");
}

}  // namespace

void begin_run(const Config& config, const fs::path& checkpoint, int64_t step, const TrainOptions& options) {
  const RunPaths paths = paths_of(config);
  if (options.overwrite) set_aside(paths.checkpoints);
  if (checkpoint.empty() && (options.overwrite || config.lora.rank > 0))
    set_aside(paths.run / kAdapterDirectory);
  if (!checkpoint.empty() && is_of_run(checkpoint, paths)) set_aside_newer(checkpoint, paths);
  const std::string text = to_json(stored_form(config));
  std::error_code error;
  if (fs::exists(paths.config, error)) {
    constexpr int64_t kMostBytes = 16 << 20;
    if (checkpoint::read_text(paths.config, kMostBytes) != text) set_aside(paths.config);
  }
  if (!paths.metrics.empty()) {
    fs::create_directories(paths.metrics.parent_path(), error);
    if (checkpoint.empty()) {
      if (has_metrics(paths)) set_aside(paths.metrics);
    } else {
      cut_metrics(paths.metrics, step);
    }
  }
  note_resume(paths, checkpoint, step);
  replace_file(paths.config, text);
}

}  // namespace zero::training
