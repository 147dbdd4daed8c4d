#pragma once
// What every optimizer asks of the shards it is given.

#include "optim/kernels/kernels.h"
#include "optim/shard_optimizer.h"

namespace zero {

/// fp32, bf16 or fp16 as the kernels name them. Throws Unsupported for others.
kernels::Element element_of(at::ScalarType type);

/// Throws Usage or Unsupported unless shard number `index` keeps OptimizerShard's contract.
void check_shard(StateStore& states, const OptimizerShard& shard, size_t index, int parameters);

/// Throws Usage unless `input` fits.
void check_step(const StepInput& input, size_t parameters);

/// True where master and parameter are the same memory, or there is no parameter: nothing to copy.
bool keeps_no_copy(const StateStore::Lease& shard);

/// The elements of one segment of a flat tensor.
inline at::Tensor piece(const at::Tensor& flat, const ShardSegment& segment) {
  return flat.narrow(0, segment.begin, segment.numel());
}

/// The part of a segment that lies in a piece, counted from the piece's begin.
ShardSegment part_in(const StatePiece& piece, const ShardSegment& segment);

}  // namespace zero
