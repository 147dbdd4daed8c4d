#pragma once
// What a rank holds of a plan's units.

#include "zero/plan.h"

namespace zero {

/// The figures of bytes, without those of traffic, from the units as they are.
RankPlan rank_bytes(const Plan& plan, bool on_cpu);

}  // namespace zero
