// zero pipeline --ranks N --micro-batches M
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "pipeline/schedules.h"
#include "pipeline/timeline.h"
#include "verbs.h"
#include "zero/error.h"

namespace zero::tool {
namespace {

using Json = nlohmann::ordered_json;
using namespace zero::pipeline;

struct PipelineArguments {
  int ranks = 4, micro_batches = 8, chunks = 2, columns = 120;
  std::string schedule;
  std::vector<double> times;
  double kept = 0, weight_share = 1;
  bool json = false;
};

struct Entry {
  Kind kind;
  Table table;
  Timeline timeline;
};

StageCosts costs_of(const PipelineArguments& arguments) {
  StageCosts costs{.weight_share = arguments.weight_share};
  const std::vector<double>& times = arguments.times;
  if (times.empty()) return costs;
  require(times.size() == 3 || times.size() == 4, ErrorKind::Config, "--times",
          "it has " + std::to_string(times.size()) + " values",
          "give FORWARD,BACKWARD_INPUT,BACKWARD_WEIGHT[,TRANSFER]");
  costs.forward = times[0];
  costs.backward_input = times[1];
  costs.backward_weight = times[2];
  if (times.size() == 4) costs.transfer = times[3];
  return costs;
}

double most(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

/// A row a rank over time: F forward, B backward, b and w its halves, "." waiting.
void draw(const Entry& entry, const StageCosts& costs, int columns) {
  const char letters[] = {'F', 'B', 'b', 'w'};
  const double scale = columns / entry.timeline.duration;
  for (int rank = 0; rank < entry.table.shape.ranks; ++rank) {
    std::string line(columns, '.');
    const std::vector<Action>& row = entry.table.rows[rank];
    for (size_t i = 0; i < row.size(); ++i) {
      const double start = entry.timeline.starts[rank][i];
      const double end = start + costs.of(row[i].pass, entry.table.shape.chunks);
      for (int c = static_cast<int>(std::lround(start * scale)); c < std::lround(end * scale) && c < columns;
           ++c)
        line[c] = letters[static_cast<int>(row[i].pass)];
    }
    std::cout << "  " << line << "\n";
  }
}

void print(const Entry& entry) {
  const Timeline& timeline = entry.timeline;
  char text[128];
  std::snprintf(text, sizeof text, "%-12s %8d %9.2f%% %12.4g %14.4g\n",
                std::string(to_string(entry.kind)).c_str(), entry.table.shape.chunks, 100 * timeline.bubble,
                timeline.duration, most(timeline.peak_kept));
  std::cout << text;
}

Json to_json(const Entry& entry) {
  Json rows = Json::array();
  for (const std::vector<Action>& row : entry.table.rows) {
    Json actions = Json::array();
    for (const Action& action : row) actions.push_back(to_string(action, entry.table.shape));
    rows.push_back(std::move(actions));
  }
  return {{"schedule", to_string(entry.kind)},
          {"chunks", entry.table.shape.chunks},
          {"bubble", entry.timeline.bubble},
          {"duration", entry.timeline.duration},
          {"ideal", entry.timeline.ideal},
          {"idle", entry.timeline.idle},
          {"peak_kept_micro_batches", entry.timeline.peak_kept},
          {"rows", std::move(rows)}};
}

}  // namespace

int run_pipeline(int argc, char** argv) {
  PipelineArguments arguments;
  CLI::App app(
      "zero pipeline --ranks N --micro-batches M\n"
      "How long a pipeline's ranks wait and what they keep, schedule by schedule: what parallel.schedule may "
      "be.");
  app.add_option("-n,--ranks", arguments.ranks, "ranks along the pipeline [4]")->check(at_least_one());
  app.add_option("-m,--micro-batches", arguments.micro_batches, "of a step [8]")->check(at_least_one());
  app.add_option("--chunks", arguments.chunks, "stages a rank of the interleaved schedule [2]")
      ->check(at_least_one());
  app.add_option("--schedule", arguments.schedule,
                 "one of them, drawn: gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, search");
  app.add_option("--times", arguments.times,
                 "of a rank and micro-batch: FORWARD,BACKWARD_INPUT,BACKWARD_WEIGHT[,TRANSFER] [1,1,1,0]")
      ->delimiter(',');
  app.add_option("--kept", arguments.kept,
                 "micro-batches whose activations a rank may keep, for zb-v and search [as many as ranks]");
  app.add_option("--weight-share", arguments.weight_share,
                 "share of the activations that the weights' gradients need [1]")
      ->check(CLI::Range(0.0, 1.0));
  app.add_flag("--json", arguments.json, "figures and tables as JSON");
  if (!parse(app, argc, argv)) return 0;

  const SearchOptions options{costs_of(arguments), arguments.kept};
  const std::vector<Kind> kinds =
      arguments.schedule.empty() ? all_kinds() : std::vector<Kind>{kind_from(arguments.schedule)};
  std::vector<Entry> entries;
  for (Kind kind : kinds) {
    Table table = make_schedule(kind, arguments.ranks, arguments.micro_batches, arguments.chunks, options);
    Timeline timeline = time_of(table, options.costs);
    entries.push_back({kind, std::move(table), std::move(timeline)});
  }
  if (arguments.json) {
    Json all = Json::array();
    for (const Entry& entry : entries) all.push_back(to_json(entry));
    std::cout << all.dump(2) << "\n";
    return 0;
  }
  std::cout << "schedule       chunks     bubble     duration   kept at most\n";
  for (const Entry& entry : entries) print(entry);
  if (!arguments.schedule.empty()) {
    std::cout << "\n";
    draw(entries.front(), options.costs, arguments.columns);
    std::cout << "\n  F forward, B backward, b of the input, w of the weights, . waiting\n";
  }
  return 0;
}

}  // namespace zero::tool
