#pragma once
// Which ranks a verb runs on: those of a launcher, those that it starts itself, or this process alone.

#include "device.h"
#include "zero/config.h"
#include "zero/mesh.h"

namespace zero::tool {

struct Ranks {
  Rendezvous job;       // of this process
  int ranks = 1;        // that the verb runs on
  bool starts = false;  // this process is none of them: it starts them
  bool is_first() const { return starts || job.rank == 0; }
  /// True where no other process of the job has checked the arguments before.
  bool must_check() const { return starts || job.launcher != "zero"; }
};

/// `wanted`: --ranks; 0: not given. Throws Config where a launcher started another number of ranks.
Ranks ranks_of(int wanted);

/// The mesh on which so many ranks use a model that a run has left: the run's tensor-parallel ranks where
/// they divide those, otherwise none, and its ranks along a pipeline where both divide them; results do not
/// depend on it but for rounding.
MeshOptions mesh_for_inference(const Config& config, int ranks);

/// Makes this process a rank: memory, threads and the device as the configuration says, and the mesh on them.
/// Null `device`: the CPU. Collective.
Mesh join_ranks(const Config& config, const Rendezvous& job, MeshOptions options, ToolDevice* device);

}  // namespace zero::tool
