#pragma once
// Which units of a chain keep their activations and which compute them again, so that forward and backward
// take the least time in a given memory. Numbers only: no tensors.
//
// Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova: "Optimal checkpointing for heterogeneous chains: how to
// train deep neural networks with limited memory" (2019), known as Rotor. The plans searched are their
// persistent ones: what is kept stays until its backward.

#include <cstdint>
#include <optional>
#include <vector>

namespace zero::detail {

/// What one unit takes of a micro-batch. Times are of any unit, 0 or more; bytes too.
struct ChainUnit {
  int64_t forward_time = 0;
  int64_t backward_time = 0;
  int64_t input_bytes = 0;  // what its forward begins from
  int64_t kept_bytes = 0;   // beside its input, what its backward needs
};

/// A memory that what a unit keeps can wait in for its backward: time a byte there and back.
struct ChainTier {
  double out_time = 0, back_time = 0;
};

/// One unit that keeps what it needs, or a run of units of which only the first one's input is kept.
struct ChainPart {
  int first = 0, last = 0;        // units, both included
  bool keeps = false;             // then first == last
  int tier = -1;                  // of one that keeps: which tier it keeps it in, -1: where it is
  std::vector<ChainPart> inside;  // else: how they run when backward computes them again
  bool operator==(const ChainPart&) const = default;
};

struct ChainPlan {
  std::vector<ChainPart> parts;  // all units in order
  int64_t time = 0;              // of forward and backward
};

/// What a unit takes that keeps in a tier: the way out is hidden behind its own forward and the way back
/// behind its own backward, as long as they take, and no longer; the rest is waited for. Its kept_bytes are
/// there in its own backward only. Transfers may do better, where a neighbour hides what this unit cannot:
/// that is an upper bound, and the rate of a row of equal units.
int64_t time_in_tier(const ChainUnit& unit, const ChainTier& tier);

/// The plan of least time whose activations never exceed `budget_bytes`; nothing where none exists. The first
/// unit's input, gradients and what a unit needs for a moment are not counted. Sizes are rounded up to 1/500
/// of a budget that is larger than 500 bytes: optimal for the rounded sizes, and never above the budget. Time
/// and memory grow with the cube and the square of the number of units: 50 ms for 48. Units that are computed
/// again keep nothing in a tier meanwhile: they are about to be needed. What transfers pass through is the
/// caller's to take off the budget.
std::optional<ChainPlan> plan_chain(const std::vector<ChainUnit>& units, int64_t budget_bytes,
                                    const std::vector<ChainTier>& tiers = {});

/// The smallest budget that has a plan, up to a 500th. Tiers do not change it: a unit that is computed again
/// alone needs as much.
int64_t least_budget_bytes(const std::vector<ChainUnit>& units);

/// Kept in full, the most that a plan can use.
int64_t most_bytes(const std::vector<ChainUnit>& units);

}  // namespace zero::detail
