#pragma once
// A micro-batch's backward on a CPU, unit by unit, as the engine has it: which buckets of gradients there
// are, and what memory sums and gradients take while activations go.

#include <cstdint>
#include <vector>

#include "zero/plan.h"

namespace zero {

/// Units of the gradients that each bucket has pieces of (indices of plan.units), in the order in which
/// buckets go: the last unit first, as GradientBuckets packs them. None where gradients travel in no buckets.
std::vector<std::vector<int>> played_buckets(const Plan& plan);

/// Memory while a unit's gradients go, the last unit of a model first.
struct BackwardMoment {
  int unit = 0;
  int64_t sum_bytes = 0;      // of sums that are kept in memory, so far: whole pages
  int64_t passing_bytes = 0;  // of sums on their way to a disk, or to their update
  int64_t pending_bytes = 0;  // of autograd's gradients that have not gone
  int64_t ahead_bytes = 0;    // new parameters of units that were updated, so far
};

/// One for each trained unit. `passing`: bytes of each unit's sum that passes through memory, 0 of others.
std::vector<BackwardMoment> played_backward(const Plan& plan, const std::vector<int64_t>& passing);

/// Summed gradients that are kept in memory, in the whole pages that they borrow.
int64_t gradient_page_bytes(const Plan& plan);

}  // namespace zero
