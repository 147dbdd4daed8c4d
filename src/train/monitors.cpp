#include "train/monitors.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/output_file.h"
#include "checkpoint/file_io.h"
#include "zero/error.h"

namespace zero::training {
namespace {

namespace fs = std::filesystem;

// The shortest text that reads as the same number.
std::string number_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

// Rows up to `samples`; nothing of an unfinished one.
std::string rows_until(const std::string& text, int64_t samples, const fs::path& path) {
  std::string kept;
  for (size_t begin = 0, row = 0; begin < text.size(); ++row) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    int64_t step = 0;
    const auto read = std::from_chars(text.data() + begin, text.data() + end, step);
    require(row == 0 || (read.ec == std::errc() && *read.ptr == ','), ErrorKind::Corrupt,
            path.string() + ":" + std::to_string(row + 1), "expected a row that begins with a step",
            "move the file away or repair it");
    if (row == 0 || step <= samples) kept.append(text, begin, end + 1 - begin);
    begin = end + 1;
  }
  return kept;
}

// The name of a run is its directory's.
WandbAbout wandb_about(const Config& config) {
  const WandbConfig& wandb = config.logging.wandb;
  WandbAbout about{.team = wandb.team,
                   .group = wandb.group,
                   .project = wandb.project,
                   .name = fs::absolute(config.run.directory).lexically_normal().filename().string()};
  const nlohmann::ordered_json sections = nlohmann::ordered_json::parse(to_json(config));
  for (const auto& [key, value] : sections.items()) about.config.emplace_back(key, value.dump());
  return about;
}

}  // namespace

fs::path monitor_directory(const MonitorConfig& monitor, const Config& config, const std::string& name) {
  const fs::path base =
      monitor.output_path.empty() ? fs::path(config.run.directory) / name : fs::path(monitor.output_path);
  return base / monitor.job_name;
}

CsvTables::CsvTables(fs::path directory, int64_t samples)
    : directory_(std::move(directory)), first_samples_(samples) {
  std::error_code error;
  fs::create_directories(directory_, error);
  require(!error, ErrorKind::Io, directory_.string(), "cannot make the directory: " + error.message());
}

AppendFile& CsvTables::file_of(const std::string& tag) {
  const auto known = files_.find(tag);
  if (known != files_.end()) return known->second;
  std::string name = tag;
  std::replace(name.begin(), name.end(), '/', '_');
  const fs::path path = directory_ / (name + ".csv");
  std::string text;
  if (std::error_code error; fs::exists(path, error))
    text = checkpoint::read_text(path, std::numeric_limits<int64_t>::max());
  const std::string kept = rows_until(text, first_samples_, path);
  if (kept != text) replace_file(path, kept);
  AppendFile& file = files_.emplace(tag, AppendFile(path)).first->second;
  if (kept.empty()) file.append("step," + tag.substr(tag.rfind('/') + 1) + "\n");
  return file;
}

void CsvTables::add(int64_t samples, EventFile::Scalars scalars) {
  for (const auto& [tag, value] : scalars)
    file_of(tag).append(std::to_string(samples) + "," + number_text(value) + "\n");
}

Monitors::Monitors(const Config& config, int64_t samples)
    : scales_losses_(config.precision.param_dtype == Dtype::f16) {
  const LoggingConfig& logging = config.logging;
  if (logging.tensorboard.enabled)
    events_ = std::make_unique<EventFile>(monitor_directory(logging.tensorboard, config, "tensorboard"),
                                          samples + 1);
  if (logging.csv.enabled)
    tables_ = std::make_unique<CsvTables>(monitor_directory(logging.csv, config, "csv_monitor"), samples);
  if (logging.wandb.enabled)
    wandb_ = std::make_unique<WandbRun>(fs::path(config.run.directory) / "wandb", wandb_about(config));
}

void Monitors::finish() {
  if (wandb_) wandb_->finish();
}

void Monitors::add(int64_t samples, const std::vector<std::pair<std::string, double>>& scalars) {
  if (events_) events_->add(samples, scalars);
  if (tables_) tables_->add(samples, scalars);
  if (wandb_) wandb_->add(samples, scalars);
}

void Monitors::step(const StepReport& report, int64_t samples) {
  std::vector<std::pair<std::string, double>> scalars = {
      {"Train/Samples/train_loss", report.loss},
      {"Train/Samples/lr", report.lr},
      {"Train/Samples/grad_norm", report.grad_norm},
      {"Train/Samples/tokens_per_s", report.tokens_per_s},
      {"Train/Samples/step_s", report.step_s},
      {"Train/Samples/resident_bytes", static_cast<double>(report.resident_bytes)}};
  if (scales_losses_) scalars.emplace_back("Train/Samples/loss_scale", report.loss_scale);
  add(samples, scalars);
}

void Monitors::evaluation(const EvalResult& result, int64_t samples) {
  add(samples, {{"Eval/Samples/loss", result.loss}, {"Eval/Samples/perplexity", result.perplexity}});
}

}  // namespace zero::training
