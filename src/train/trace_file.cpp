#include "train/trace_file.h"

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

void write_trace(const Mesh& mesh, const std::filesystem::path& path) {
  std::string own;
  detail::together(mesh, "trace", [&] {
    require(mesh.trace() != nullptr, ErrorKind::Usage, "trace", "the mesh was joined without one",
            "set MeshOptions::trace");
    own = mesh.trace()->events(mesh.rank());
  });
  std::vector<std::string> events;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::string text = detail::text_of_rank(mesh, rank, own, "trace");
    if (mesh.rank() == 0) events.push_back(std::move(text));
  }
  detail::together(mesh, "trace", [&] {
    if (mesh.rank() != 0) return;
    const std::string document = trace_document(events);
    OutputFile file(path, &kTraceFile);
    file.append(std::as_bytes(std::span(document)));
    file.publish();
  });
}

}  // namespace zero
