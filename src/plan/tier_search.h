#pragma once
// The search behind choose_tiers(): one choice for each of several units, so that sums stay within bounds and
// cost the least.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace zero {

/// One way to place a unit's states.
struct UnitOption {
  int64_t begin_bytes = 0, end_bytes = 0;  // of memory when backward begins and when it ends
  int64_t host_bytes = 0, disk_bytes = 0;
  int64_t ring_bytes = 0;  // of memory, once for all units: the most that any asks for
  double seconds = 0;
};

struct TierBounds {
  int64_t begin_bytes = 0, end_bytes = 0, host_bytes = 0, disk_bytes = 0;
};

/// Of each unit the index of its option. None where no choice fits the bounds. The result costs the least as
/// long as the partial choices that no other one beats are few, as with a handful of units; of more the best
/// for each amount of memory are followed, and always the one that takes the least.
std::optional<std::vector<int>> search_tiers(std::span<const std::vector<UnitOption>> units,
                                             const TierBounds& bounds);

/// The choice that takes the least memory at its peak, of which `begin_more` and `end_more` are always there.
std::vector<int> least_choice(std::span<const std::vector<UnitOption>> units, int64_t begin_more,
                              int64_t end_more);

}  // namespace zero
