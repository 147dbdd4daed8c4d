#pragma once
// When a rank's memory is fullest.

#include <algorithm>
#include <cstdint>

#include "zero/activations.h"

namespace zero {

/// The most that a rank holds at once when backward begins, and later: while activations go, and after.
struct PlannedPeak {
  int64_t begin_bytes = 0, later_bytes = 0;
  int64_t bytes() const { return std::max(begin_bytes, later_bytes); }
};

PlannedPeak planned_peak(const Plan& plan, const ActivationBytes& activations);

}  // namespace zero
