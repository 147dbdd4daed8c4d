#pragma once
// Where a gradient is not finite.

#include <string>

#include "sharding/sharded_model.h"

namespace zero::detail {

/// The first parameter, in the plan's order, whose summed gradient is not finite somewhere, and the first
/// rank that holds such an element: "h.0.mlp.c_fc.weight on rank 3"; "" where all are finite. On a device it
/// waits for it. Collective, between the sums and the gradients' end.
std::string first_overflow(ShardedModel& model);

}  // namespace zero::detail
