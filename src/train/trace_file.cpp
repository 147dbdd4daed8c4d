#include "train/trace_file.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/output_file.h"
#include "mesh/agree.h"
#include "zero/error.h"

namespace zero {
namespace {

constexpr OutputKind kTraceFile = {
    .name = "a trace", .is = [](std::string_view head) {
      const std::string empty = trace_document({});
      return head.starts_with(std::string_view(empty).substr(0, empty.find('\n')));
    }};

}  // namespace

void check_trace_file(const std::filesystem::path& path) {
  const auto folder = std::filesystem::absolute(path).parent_path();
  std::error_code ignored;
  require(std::filesystem::is_directory(folder, ignored), ErrorKind::Config, path.string(),
          folder.string() + " is not a directory", "make it, or name another file");
  require_replaceable(path, kTraceFile);
}

namespace {

/// A text of every rank, in rank order, on rank 0; nothing on others. Collective.
std::vector<std::string> texts_on_first(const Mesh& mesh, const std::string& own) {
  std::vector<std::string> texts;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::string text = detail::text_of_rank(mesh, rank, own, "trace");
    if (mesh.rank() == 0) texts.push_back(std::move(text));
  }
  return texts;
}

using Json = nlohmann::ordered_json;

/// Lets times begin with the earliest: microseconds since 1970 leave a double no digits for a device's.
void begin_at_zero(std::vector<std::string>& events_of_ranks) {
  std::vector<Json> ranks;
  double earliest = std::numeric_limits<double>::infinity();
  for (const std::string& events : events_of_ranks) {
    ranks.push_back(Json::parse("[" + events + "]"));
    for (const Json& event : ranks.back())
      if (event.contains("ts")) earliest = std::min(earliest, event["ts"].get<double>());
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::string text;
    for (Json& event : ranks[rank]) {
      if (event.contains("ts")) event["ts"] = event["ts"].get<double>() - earliest;
      text += (text.empty() ? "" : ",\n") + event.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    events_of_ranks[rank] = std::move(text);
  }
}

}  // namespace

void write_trace(const Mesh& mesh, const std::filesystem::path& path, const std::string& device_events) {
  std::string own;
  detail::together(mesh, "trace", [&] {
    require(mesh.trace() != nullptr, ErrorKind::Usage, "trace", "the mesh was joined without one",
            "set MeshOptions::trace");
    own = mesh.trace()->events(mesh.rank());
  });
  std::vector<std::string> events = texts_on_first(mesh, own), of_devices;
  if (!device_events.empty()) of_devices = texts_on_first(mesh, device_events);
  detail::together(mesh, "trace", [&] {
    if (mesh.rank() != 0) return;
    if (!of_devices.empty()) begin_at_zero(events);
    events.insert(events.end(), of_devices.begin(), of_devices.end());
    write_trace_events(events, path);
  });
}

void write_trace_events(std::span<const std::string> events, const std::filesystem::path& path) {
  const std::string document = trace_document(events);
  OutputFile file(path, &kTraceFile);
  file.append(std::as_bytes(std::span(document)));
  file.publish();
}

}  // namespace zero
