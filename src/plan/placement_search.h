#pragma once
// The cheapest placement that fits by what a plan of it really takes, where sums over units (tier_search.h)
// say so only about.

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "plan/tier_search.h"

namespace zero {

/// What a placement takes, everything counted. The bounds of a search are in the same figures.
struct PlacementCost {
  TierBounds bytes = {};  // end_bytes: the most after backward has begun
  double seconds = 0;
};

/// Of units that each have some options.
struct PlacementSearch {
  std::span<const std::vector<UnitOption>> units;
  TierBounds bounds = {};
  TierBounds more = {};  // what is there whatever the options say, about
  /// Of each unit's option (an index of `units`): makes the plan.
  std::function<PlacementCost(const std::vector<int>&)> cost_of;

  /// None where nothing was found. The least seconds where at most about a thousand placements are possible;
  /// of more, one that no other option of a unit, or of two, was found to improve.
  std::optional<std::vector<int>> cheapest() const;
  /// The one that takes the least memory at its peak, found in the same way.
  std::vector<int> leanest() const;
};

}  // namespace zero
