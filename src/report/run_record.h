#pragma once
// What a run directory says about a run, as far as it has come.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace zero::report {

/// One number of every step (or evaluation) that has it; not finite where the file has null.
struct Series {
  std::vector<int64_t> step;
  std::vector<double> value;
};

struct Event {
  int64_t step = 0;
  std::string text;  // "saved", "skipped: the gradient was not finite"
};

struct RunRecord {
  std::string name;  // of its directory
  std::map<std::string, Series>
      series;                 // by the field of a metrics line; nested ones as "device_bytes.states"
  std::vector<Event> events;  // by step
  std::string config;         // the text of config.json; empty where there is none
};

/// Reads RUN/config.json, the metrics that it names and the checkpoints beside them. A line that is still
/// being written is left out. Throws Config where `directory` is no run, Corrupt with file and line, Io.
RunRecord read_run(const std::filesystem::path& directory);

/// A series with at most `points` points: means of neighbours at the last of their steps, so that a curve of
/// a million steps draws like one of a thousand. The last point is the series' own where there is room for
/// all.
Series thinned(const Series& series, size_t points);

}  // namespace zero::report
