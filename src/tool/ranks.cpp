#include "ranks.h"

#include <string>

#include "zero/compute_threads.h"
#include "zero/cpu_allocator.h"
#include "zero/error.h"
#include "zero/from_config.h"

namespace zero::tool {

Ranks ranks_of(int wanted) {
  require(wanted >= 0, ErrorKind::Config, "--ranks", "expected at least 1, got " + std::to_string(wanted));
  Ranks ranks;
  ranks.job = rendezvous_from_environment();
  const bool launched = ranks.job.launcher != "none";
  ranks.ranks = launched || wanted == 0 ? ranks.job.size : wanted;
  require(wanted == 0 || wanted == ranks.ranks, ErrorKind::Config, "--ranks",
          "expected " + std::to_string(ranks.job.size) + ", the ranks that " + ranks.job.launcher +
              " has started, got " + std::to_string(wanted),
          "leave --ranks out under a launcher");
  ranks.starts = !launched && ranks.ranks > 1;
  return ranks;
}

MeshOptions mesh_for_inference(const Config& config, int ranks) {
  MeshOptions options = mesh_options_of(config);
  int used = 1;
  for (const char* name : {"tp", "pp"})
    for (Axis& axis : options.axes) {
      if (axis.name != name) continue;
      if (ranks % (used * axis.size) != 0) axis.size = 1;
      used *= axis.size;
    }
  return options;
}

Mesh join_ranks(const Config& config, const Rendezvous& job, MeshOptions options, ToolDevice* device) {
  use_training_allocator();
  prepare_compute_threads(compute_threads_of(config, job.local_size));
  if (device != nullptr) device->open(options, options.trace != nullptr);
  const Mesh mesh = Mesh::join(job, options);
  use_cuda_settings(config, mesh.device());
  return mesh;
}

}  // namespace zero::tool
