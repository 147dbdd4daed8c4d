#include "report/page.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "zero/error.h"

namespace zero::report {

extern const char* const kPageTemplate;  // page.html

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPointsOfACurve = 1500;
constexpr size_t kEvents = 500;

/// A curve of a chart.
struct Line {
  const char* field;
  const char* label;
  bool dots = false;  // few points: evaluations
};

struct Chart {
  const char* title;
  const char* format;  // of its values, as page.html knows them
  std::vector<Line> lines;
};

const std::vector<Chart>& charts() {
  static const std::vector<Chart> all{
      {"Loss, nats a token", "number", {{"loss", "training"}, {"eval_loss", "evaluation", true}}},
      {"Learning rate", "small", {{"lr", ""}}},
      {"Gradient norm", "number", {{"grad_norm", "before clipping"}}},
      {"Tokens a second", "count", {{"tokens_per_s", ""}}},
      {"Memory of rank 0", "bytes", {{"resident_bytes", "process"}, {"slab_bytes", "gathered parameters"}}},
      {"Waiting for other ranks, share of a step", "share", {{"waited_share", ""}}},
      {"Step on the virtual device", "ms", {{"simulated_ms", ""}}},
      {"Loss scale", "count", {{"loss_scale", ""}}},
  };
  return all;
}

// Fields "PREFIX.x" of all runs, without the prefix.
std::vector<std::string> fields_under(const std::vector<RunOnPage>& runs, const std::string& prefix) {
  std::vector<std::string> names;
  for (const RunOnPage& run : runs)
    for (const auto& [name, series] : run.record.series)
      if (name.starts_with(prefix + ".") && std::find(names.begin(), names.end(), name) == names.end())
        names.push_back(name);
  return names;
}

Json chart_json(const std::string& title, const std::string& format, const Json& lines) {
  return {{"title", title}, {"format", format}, {"lines", lines}};
}

bool has_field(const std::vector<RunOnPage>& runs, const std::string& field) {
  return std::any_of(runs.begin(), runs.end(),
                     [&](const RunOnPage& run) { return run.record.series.contains(field); });
}

Json charts_json(const std::vector<RunOnPage>& runs) {
  Json all = Json::array();
  for (const Chart& chart : charts()) {
    Json lines = Json::array();
    for (const Line& line : chart.lines)
      if (has_field(runs, line.field))
        lines.push_back({{"field", line.field}, {"label", line.label}, {"dots", line.dots}});
    if (!lines.empty()) all.push_back(chart_json(chart.title, chart.format, lines));
  }
  for (const auto& [prefix, title] :
       {std::pair{"device_bytes", "Device memory by purpose"}, {"memory", "Memory by tier and purpose"}}) {
    Json lines = Json::array();
    for (const std::string& field : fields_under(runs, prefix))
      lines.push_back(
          {{"field", field}, {"label", field.substr(std::string(prefix).size() + 1)}, {"dots", false}});
    if (!lines.empty()) all.push_back(chart_json(title, "bytes", lines));
  }
  return all;
}

const Series* find(const RunRecord& run, const std::string& field) {
  const auto found = run.series.find(field);
  return found == run.series.end() || found->second.step.empty() ? nullptr : &found->second;
}

// JSON has no NaN: nlohmann writes null.
Json last_of(const RunRecord& run, const std::string& field) {
  const Series* series = find(run, field);
  return series ? Json(series->value.back()) : Json();
}

Json extreme_of(const RunRecord& run, const std::string& field, bool least) {
  const Series* series = find(run, field);
  Json best;
  for (const double value : series ? series->value : std::vector<double>())
    if (std::isfinite(value) && (best.is_null() || (least ? value < best : value > best))) best = value;
  return best;
}

Json median_of(const RunRecord& run, const std::string& field) {
  const Series* series = find(run, field);
  if (!series) return {};
  std::vector<double> values;
  for (const double value : series->value)
    if (std::isfinite(value)) values.push_back(value);
  if (values.empty()) return {};
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double sum_of(const RunRecord& run, const std::string& field) {
  const Series* series = find(run, field);
  double sum = 0;
  for (const double value : series ? series->value : std::vector<double>())
    if (std::isfinite(value)) sum += value;
  return sum;
}

// What a run came to: label, format, value.
Json facts_json(const RunRecord& run) {
  const Series* loss = find(run, "loss");
  const auto skipped = std::count_if(run.events.begin(), run.events.end(),
                                     [](const Event& event) { return event.text.starts_with("skipped"); });
  Json facts = Json::array();
  const auto add = [&](const char* label, const char* format, const Json& value) {
    facts.push_back({label, format, value});
  };
  add("steps", "integer", loss ? Json(loss->step.back()) : Json(0));
  add("tokens", "count", last_of(run, "tokens"));
  add("time in steps", "seconds", sum_of(run, "step_s"));
  add("last loss", "number", last_of(run, "loss"));
  add("last evaluation", "number", last_of(run, "eval_loss"));
  add("best evaluation", "number", extreme_of(run, "eval_loss", true));
  add("tokens a second, median", "count", median_of(run, "tokens_per_s"));
  add("waiting, median share", "share", median_of(run, "waited_share"));
  add("peak memory of rank 0", "bytes", extreme_of(run, "peak_resident_bytes", false));
  add("skipped steps", "integer", skipped);
  return facts;
}

Json run_json(const RunOnPage& run) {
  Json series = Json::object();
  for (const auto& [name, whole] : run.record.series) {
    const Series few = thinned(whole, kPointsOfACurve);
    series[name] = {{"step", few.step}, {"value", few.value}};
  }
  Json events = Json::array();
  const size_t left_out = run.record.events.size() > kEvents ? run.record.events.size() - kEvents : 0;
  for (size_t i = left_out; i < run.record.events.size(); ++i)
    events.push_back({run.record.events[i].step, run.record.events[i].text});
  return {{"name", run.record.name},    {"facts", facts_json(run.record)}, {"series", series},
          {"events", events},           {"events_left_out", left_out},     {"plan", run.plan},
          {"config", run.record.config}};
}

// JSON inside a <script>: "</script>" and "<!--" must not show.
std::string for_script(const Json& json) {
  std::string out;
  for (const char c : json.dump(-1, ' ', false, Json::error_handler_t::replace))
    out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return out;
}

}  // namespace

std::string page(const std::vector<RunOnPage>& runs) {
  require(!runs.empty(), ErrorKind::Config, "report", "there is no run to report", "name a run's directory");
  Json data = {{"charts", charts_json(runs)}, {"runs", Json::array()}};
  for (const RunOnPage& run : runs) data["runs"].push_back(run_json(run));
  const std::string html = kPageTemplate, mark = "@data@";
  const size_t place = html.find(mark);
  return html.substr(0, place) + for_script(data) + html.substr(place + mark.size());
}

}  // namespace zero::report
