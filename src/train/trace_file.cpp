#include "zero/trace_file.h"

#include <string>
#include <vector>

#include "train/agree.h"
#include "train/run_files.h"
#include "zero/error.h"

namespace zero {

void write_trace(const Mesh& mesh, const std::filesystem::path& path) {
  std::string own;
  training::together(mesh, "trace", [&] {
    require(mesh.trace() != nullptr, ErrorKind::Usage, "trace", "the mesh was joined without one",
            "set MeshOptions::trace");
    own = mesh.trace()->events(mesh.rank());
  });
  std::vector<std::string> events;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    std::string text = training::text_of_rank(mesh, rank, own, "trace");
    if (mesh.rank() == 0) events.push_back(std::move(text));
  }
  training::together(mesh, "trace", [&] {
    if (mesh.rank() == 0) training::replace_file(path, trace_document(events));
  });
}

}  // namespace zero
