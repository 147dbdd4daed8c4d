#pragma once
// What states on disk take: of memory, of the disk and of its rate.

#include <cstdint>
#include <vector>

#include "zero/plan.h"

namespace zero {

/// Fills in ring, file and staging bytes, from the plan's units and `rank`'s gather window.
void add_disk(const Plan& plan, RankPlan& rank);

/// Bytes of each unit's sum that pass through a rank's memory because it is kept on disk; 0 of others.
std::vector<int64_t> passing_sums_of(const Plan& plan);

/// Of sums of gradients that pass through a memory, by trained unit, the most that is there at a time: those
/// of units whose pieces may be in buckets together, and the one that is going. `numels`: of their shards.
int64_t sums_in_memory(const Plan& plan, const std::vector<int64_t>& bytes,
                       const std::vector<int64_t>& numels);

/// Fills in what a step reads and writes.
void add_disk_traffic(Plan& plan);

}  // namespace zero
