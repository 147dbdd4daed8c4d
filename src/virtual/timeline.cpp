#include "virtual/timeline.h"

#include <nlohmann/json.hpp>
#include <set>

namespace zero::virtual_device {
namespace {

using TraceJson = nlohmann::ordered_json;

constexpr double kPicosecondsOfMicrosecond = 1e6;

TraceJson row_name(int process, int row, const char* what, const std::string& name) {
  return {{"ph", "M"}, {"pid", process}, {"tid", row}, {"name", what}, {"args", {{"name", name}}}};
}

}  // namespace

void Timeline::clear() {
  spans_.clear();
  dropped_ = 0;
}

std::string Timeline::events(int first_process) const {
  std::string text;
  const auto add_event = [&](const TraceJson& event) {
    text += (text.empty() ? "" : ",\n") + event.dump(-1, ' ', true, TraceJson::error_handler_t::replace);
  };
  std::set<int> clocks;
  for (const Span& span : spans_) clocks.insert(span.clock);
  for (const int clock : clocks) {
    const int process = first_process + device_of(clock), stream = stream_of(clock);
    add_event(row_name(process, stream, "process_name", "virtual:" + std::to_string(device_of(clock))));
    add_event(row_name(process, stream, "thread_name", "stream " + std::to_string(stream)));
  }
  for (const Span& span : spans_) {
    TraceJson event = {{"ph", "X"},
                       {"pid", first_process + device_of(span.clock)},
                       {"tid", stream_of(span.clock)},
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
