#pragma once
// Which ranks a verb runs on: those of a launcher, those that it starts itself, or this process alone.

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

}  // namespace zero::tool
