#include "zero/trace.h"

#include <array>
#include <nlohmann/json.hpp>

namespace zero {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kRows{"compute", "wait", "optimizer", "collectives"};

double microseconds(auto duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

void Trace::span(Row row, std::string name, Clock::time_point begin, Clock::time_point end,
                 int64_t elements) {
  const std::lock_guard lock(mutex_);
  if (spans_.size() < most_spans_)
    spans_.push_back({row, std::move(name), begin, end, elements});
  else
    ++dropped_;
}

void Trace::counter(std::string name, Clock::time_point at,
                    std::vector<std::pair<std::string, double>> series) {
  const std::lock_guard lock(mutex_);
  if (counters_.size() < most_spans_)
    counters_.push_back({std::move(name), at, std::move(series)});
  else
    ++dropped_;
}

size_t Trace::size() const {
  const std::lock_guard lock(mutex_);
  return spans_.size();
}

size_t Trace::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

std::string Trace::events(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto meta = [&](const char* what, int row, const std::string& name) {
    return text_of({{"ph", "M"}, {"pid", rank}, {"tid", row}, {"name", what}, {"args", {{"name", name}}}});
  };
  std::string text = meta("process_name", 0, "rank " + std::to_string(rank));
  for (size_t row = 0; row < kRows.size(); ++row)
    text += ",\n" + meta("thread_name", static_cast<int>(row), std::string(kRows[row]));
  const double base = microseconds(started_at_.time_since_epoch());
  size_t number = 0;
  for (const Span& span : spans_) {
    const double at = base + microseconds(span.begin - started_), took = microseconds(span.end - span.begin);
    Json event = {{"pid", rank}, {"tid", static_cast<int>(span.row)}, {"name", span.name}, {"ts", at}};
    event["cat"] = kRows[static_cast<size_t>(span.row)];
    if (span.elements >= 0) event["args"] = {{"elements", span.elements}};
    ++number;
    if (span.row != Row::Collective) {
      event["ph"] = "X";
      event["dur"] = took;
      text += ",\n" + text_of(event);
      continue;
    }
    // Several are under way at a time, which only begin and end events with a number can show.
    event["id"] = std::to_string(rank) + "." + std::to_string(number);
    event["ph"] = "b";
    text += ",\n" + text_of(event);
    event["ph"] = "e";
    event["ts"] = at + took;
    text += ",\n" + text_of(event);
  }
  for (const Counter& counter : counters_) {
    Json values = Json::object();
    for (const auto& [series, value] : counter.series) values[series] = value;
    text += ",\n" + text_of({{"ph", "C"},
                             {"pid", rank},
                             {"name", counter.name},
                             {"ts", base + microseconds(counter.at - started_)},
                             {"args", values}});
  }
  if (dropped_ > 0)
    text += ",\n" +
            text_of({{"ph", "M"},
                     {"pid", rank},
                     {"name", "process_labels"},
                     {"args",
                      {{"labels", std::to_string(dropped_) + " later spans and counters were not kept"}}}});
  return text;
}

std::string trace_document(std::span<const std::string> events_of_ranks) {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  bool first = true;
  for (const std::string& events : events_of_ranks) {
    if (events.empty()) continue;
    text += (first ? "" : ",\n") + events;
    first = false;
  }
  return text + "\n]}\n";
}

}  // namespace zero
