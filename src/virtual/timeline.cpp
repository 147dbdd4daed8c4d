#include "virtual/timeline.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "zero/error.h"

namespace zero::virtual_device {
namespace {

using TraceJson = nlohmann::ordered_json;

constexpr double kPicosecondsOfMicrosecond = 1e6;

constexpr const char* kKindNames[kSpanKinds] = {"compute",     "copies to device", "copies to host",
                                                "all-gathers", "reduce-scatters",  "collectives"};

int row_of(int clock, SpanKind kind) { return stream_of(clock) * kSpanKinds + static_cast<int>(kind); }

using Interval = std::pair<Picoseconds, Picoseconds>;  // begin, end

/// Those that touch become one; in order.
std::vector<Interval> united(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  std::vector<Interval> result;
  for (const Interval& next : intervals) {
    if (!result.empty() && next.first <= result.back().second)
      result.back().second = std::max(result.back().second, next.second);
    else
      result.push_back(next);
  }
  return result;
}

Picoseconds length(const std::vector<Interval>& intervals) {
  Picoseconds sum = 0;
  for (const Interval& interval : intervals) sum += interval.second - interval.first;
  return sum;
}

TraceJson row_name(int process, int row, const char* what, const std::string& name) {
  return {{"ph", "M"}, {"pid", process}, {"tid", row}, {"name", what}, {"args", {{"name", name}}}};
}

}  // namespace

void Timeline::clear() {
  spans_.clear();
  dropped_ = 0;
}

Picoseconds Timeline::exposed_communication(int device, Picoseconds begin, Picoseconds end) const {
  require(dropped_ == 0, ErrorKind::Usage, "virtual device trace",
          std::to_string(dropped_) + " spans were not kept", "look at fewer steps");
  std::vector<Interval> busy, both;
  for (const Span& span : spans_) {
    const bool communicates = is_collective(span.kind), computes = span.kind == SpanKind::Compute;
    const Interval within{std::max(span.begin, begin), std::min(span.begin + span.duration, end)};
    if (device_of(span.clock) != device || (!communicates && !computes) || within.first >= within.second)
      continue;
    both.push_back(within);
    if (computes) busy.push_back(within);
  }
  return length(united(std::move(both))) - length(united(std::move(busy)));
}

std::string Timeline::events(int first_process, std::string_view owner) const {
  std::string text;
  const auto add_event = [&](const TraceJson& event) {
    text += (text.empty() ? "" : ",\n") + event.dump(-1, ' ', true, TraceJson::error_handler_t::replace);
  };
  std::set<std::pair<int, SpanKind>> rows;
  for (const Span& span : spans_) rows.emplace(span.clock, span.kind);
  for (const auto& [clock, kind] : rows) {
    const int process = first_process + device_of(clock), row = row_of(clock, kind);
    add_event(row_name(process, row, "process_name",
                       std::string(owner) + "virtual:" + std::to_string(device_of(clock))));
    add_event(row_name(
        process, row, "thread_name",
        std::string(kKindNames[static_cast<int>(kind)]) + ", stream " + std::to_string(stream_of(clock))));
  }
  for (const Span& span : spans_) {
    TraceJson event = {{"ph", "X"},
                       {"pid", first_process + device_of(span.clock)},
                       {"tid", row_of(span.clock, span.kind)},
                       {"name", span.work},
                       {"ts", static_cast<double>(span.begin) / kPicosecondsOfMicrosecond},
                       {"dur", static_cast<double>(span.duration) / kPicosecondsOfMicrosecond}};
    event["args"] = {{"bytes", span.bytes}, {"flops", span.flops}};
    add_event(event);
  }
  if (dropped_ > 0)
    add_event({{"ph", "M"},
               {"pid", first_process},
               {"name", "process_labels"},
               {"args", {{"labels", std::to_string(dropped_) + " later spans were not kept"}}}});
  return text;
}

}  // namespace zero::virtual_device
