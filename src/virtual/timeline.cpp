#include "virtual/timeline.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace zero::virtual_device {
namespace {

using TraceJson = nlohmann::ordered_json;

constexpr double kPicosecondsOfMicrosecond = 1e6;

constexpr const char* kKindNames[kSpanKinds] = {"compute",     "copies to device", "copies to host",
                                                "all-gathers", "reduce-scatters",  "collectives"};

int row_of(int clock, SpanKind kind) { return stream_of(clock) * kSpanKinds + static_cast<int>(kind); }

TraceJson row_name(int process, int row, const char* what, const std::string& name) {
  return {{"ph", "M"}, {"pid", process}, {"tid", row}, {"name", what}, {"args", {{"name", name}}}};
}

}  // namespace

void Timeline::clear() {
  spans_.clear();
  dropped_ = 0;
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
