#pragma once
// The values of one rank as a checkpoint wants them.

#include <memory>
#include <vector>

#include "sharding/sharded_model.h"
#include "zero/checkpoint.h"

namespace zero::detail {

struct Snapshot {
  std::vector<TensorPiece> pieces;
  std::vector<std::shared_ptr<StateStore::Lease>> leases;  // of states that pieces point into
  std::vector<at::Tensor> alive;                           // what the pieces point into
};

/// This rank's pieces of a checkpoint. Those of states on disk have no values: they are read when the pieces
/// are written, in the thread that trains, before it goes on. With `copies` in memory of their own, so that
/// training may go on; without, what is in host memory already stays where it is, but for split masters,
/// whose fp32 values are made. Frozen parameters only `with_frozen`. Ranks compare their buffers to store
/// equal ones once: collective.
Snapshot take_snapshot(ShardedModel& model, bool copies, bool with_frozen);

}  // namespace zero::detail
