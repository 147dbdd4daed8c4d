#pragma once
// What states on disk take: of memory, of the disk and of its rate.

#include "zero/plan.h"

namespace zero {

/// Fills in ring, file and staging bytes, from the plan's units and `rank`'s gather window.
void add_disk(const Plan& plan, RankPlan& rank);

/// Fills in what a step reads and writes.
void add_disk_traffic(Plan& plan);

}  // namespace zero
