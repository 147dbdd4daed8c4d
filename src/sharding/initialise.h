#pragma once
// The first values of a sharded model: from the module (replayed where it is lazy), or from elsewhere.

#include <torch/types.h>

#include <string>
#include <utility>
#include <vector>

namespace zero::detail {

class ShardedModel;

/// Fills the shards of `model`, whose memory is there, one parameter at a time; turns the module's parameters
/// into views of slabs and its buffers into those of `model.buffers`. Lets go of
/// EngineOptions::initial_values. Collective.
void initialise(ShardedModel& model, const std::vector<std::pair<std::string, at::Tensor>>& module_buffers);

}  // namespace zero::detail
