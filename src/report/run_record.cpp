#include "report/run_record.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/strict_json.h"
#include "zero/config.h"
#include "zero/error.h"

namespace zero::report {
namespace {

namespace fs = std::filesystem;

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

std::string read_whole(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), ErrorKind::Io, path.string(), "cannot be opened");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  require(!file.bad(), ErrorKind::Io, path.string(), "cannot be read");
  return text;
}

void add_numbers(RunRecord& run, int64_t step, const std::string& name, const nlohmann::json& value) {
  if (value.is_object()) {
    for (const auto& [key, inner] : value.items()) add_numbers(run, step, name + "." + key, inner);
    return;
  }
  if (!value.is_number() && !value.is_null()) return;
  Series& series = run.series[name];
  series.step.push_back(step);
  series.value.push_back(value.is_number() ? value.get<double>() : kNoNumber);
}

void add_line(RunRecord& run, const std::string& line, const std::string& place) {
  const nlohmann::json json = parse_json(line, place);
  const int64_t step = JsonPlace(json, place)["step"].count();
  for (const auto& [key, value] : json.items())
    if (key != "step") add_numbers(run, step, key, value);
  const auto skipped = json.find("skipped");
  if (skipped != json.end() && *skipped == true)
    run.events.push_back({step, "skipped: the gradient was not finite"});
}

void read_metrics(RunRecord& run, const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  require(file.good(), ErrorKind::Io, path.string(), "cannot be opened",
          "let the run come to its first step, or name another directory");
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (file.eof()) break;  // no end yet: it is being written
    add_line(run, line, path.string() + ":" + std::to_string(number));
  }
}

void read_resumes(RunRecord& run, const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string line;
  for (int64_t number = 1; std::getline(file, line) && !file.eof(); ++number) {
    const std::string place = path.string() + ":" + std::to_string(number);
    const nlohmann::json json = parse_json(line, place);
    const JsonPlace resume(json, place);
    const fs::path checkpoint = resume["checkpoint"].string();
    run.events.push_back({resume["step"].count(), "resumed from " + checkpoint.filename().string()});
  }
}

// "step-00000040" -> 40; -1 for another name.
int64_t step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix) || name.size() > kPrefix.size() + 18) return -1;
  int64_t step = 0;
  for (const char c : name.substr(kPrefix.size())) {
    if (c < '0' || c > '9') return -1;
    step = step * 10 + (c - '0');
  }
  return name.size() > kPrefix.size() ? step : -1;
}

void find_checkpoints(RunRecord& run, const fs::path& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const int64_t step = step_of(entry.path().filename().string());
    if (step >= 0) run.events.push_back({step, "checkpoint"});
  }
}

}  // namespace

RunRecord read_run(const fs::path& directory) {
  const fs::path file = directory / "config.json";
  std::error_code error;
  require(fs::is_regular_file(file, error), ErrorKind::Config, directory.string(),
          "holds no run: config.json is missing", "name a directory that zero train has made");
  RunRecord run;
  run.name = fs::weakly_canonical(directory, error).filename().string();
  run.config = read_whole(file);
  const Config config = parse_config(run.config, file.string());
  read_metrics(run, directory / config.logging.metrics_file);
  find_checkpoints(run, directory / config.checkpoint.directory);
  read_resumes(run, directory / "resumes.jsonl");  // train/run_directory.h
  std::stable_sort(run.events.begin(), run.events.end(),
                   [](const Event& a, const Event& b) { return a.step < b.step; });
  return run;
}

Series thinned(const Series& series, size_t points) {
  const size_t count = series.step.size();
  if (count <= points) return series;
  Series out;
  for (size_t i = 0; i < points; ++i) {
    const size_t begin = i * count / points, end = (i + 1) * count / points;
    double sum = 0;
    size_t finite = 0;
    for (size_t k = begin; k < end; ++k) {
      if (!std::isfinite(series.value[k])) continue;
      sum += series.value[k];
      ++finite;
    }
    out.step.push_back(series.step[end - 1]);
    out.value.push_back(finite > 0 ? sum / static_cast<double>(finite) : kNoNumber);
  }
  return out;
}

}  // namespace zero::report
