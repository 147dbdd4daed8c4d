#pragma once
// What travels in an optimizer step, found by playing the step without tensors.

#include <cstdint>
#include <vector>

#include "zero/plan.h"

namespace zero {

/// Fills in the elements of plan.rank from units, ranks and budget. Throws Config where they exceed 2^63.
void add_traffic(Plan& plan);

/// How often each unit is all-gathered in a step in the steady state; of one rank alone, how often the slab
/// of a unit on disk is filled.
std::vector<int64_t> gathers_of_step(const Plan& plan);

}  // namespace zero
