#pragma once
// Whether ranks of a pipeline that hold a parameter alike begin with the same values.

#include <vector>

#include "sharding/sharded_model.h"
#include "stages/stage_parameters.h"

namespace zero::detail {

/// Throws Config, naming the parameter, where its holders' values differ. `numbers`: as TiedSums. Collective
/// over the mesh.
void require_same_values(ShardedModel& model, const std::vector<TiedParameter>& tied,
                         const std::vector<int>& numbers);

}  // namespace zero::detail
