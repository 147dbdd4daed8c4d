#pragma once
// What travels in an optimizer step, found by playing the step without tensors.

#include "zero/plan.h"

namespace zero {

/// Fills in the elements of plan.rank from units, ranks and budget. Throws Config where they exceed 2^63.
void add_traffic(Plan& plan);

}  // namespace zero
