#pragma once
// The optimizer's step of units whose gradients are final, while backward goes on with others: what comes
// from the disk and goes there does so beside the computation. Nothing of it counts before the step: a
// gradient that is not finite, a rate that was changed, more of a gradient, or values written by hand, and
// what was done ahead never was (AheadUpdates).

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "optim/shard_optimizer.h"
#include "sharding/gradients.h"
#include "sharding/unit.h"

namespace zero::detail {

/// Not thread safe. Nothing here is collective: what a rank updates ahead is its own shards' affair, since
/// its own gradients tell it that a parameter is used.
class StepAhead : public GradientObserver {
 public:
  /// Everything given by reference outlives this. `parameters`: of all units.
  StepAhead(std::vector<Unit>& units, StateStore& states, AheadUpdates& updates, int parameters);

  /// A backward begins after which the optimizer steps with the rates of `input`. `order`: units as their
  /// sums become final; those of which nothing is used left out.
  void begin(std::span<const int> order, const StepInput& input);
  /// Of a unit all of whose parameters have a gradient on this rank; ignored for others, and outside of
  /// begin() and take_over(). `sum_is_final` does nothing but note it: lent gradients may be about.
  void sum_is_final(int unit) override;
  void sum_changes(int unit) override;
  /// Updates what has become possible, but waits for no disk. `used`: parameters that have a gradient here.
  void advance(std::span<const char> used);
  /// Nothing of it happens.
  void forget();
  /// The step happens: writes the new parameters, and returns the pieces that the optimizer need not update.
  /// Nothing but pieces of the same rates, scale and betas counts.
  std::span<const StatePiece> take_over(const StepInput& input);

  /// Pieces updated ahead in all steps so far.
  int64_t pieces() const { return taken_over_; }

 private:
  struct Updated {
    StatePiece piece;
    at::Tensor parameter;  // its new elements
    uint64_t check;        // of those it was made from, where hands may write them
  };
  bool is_used(int unit, std::span<const char> used) const;
  uint64_t check_of_parameter(const StatePiece& piece) const;

  std::vector<Unit>& units_;
  StateStore& states_;
  AheadUpdates& updates_;
  std::vector<int> first_parameter_;  // per unit
  std::vector<char> all_used_;        // per parameter
  bool is_open_ = false;
  StepInput input_;
  std::deque<int> final_;         // units that wait for their turn
  std::deque<StatePiece> to_do_;  // of the first of them
  std::vector<char> is_late_;     // per unit: in this backward, or in the one before
  std::vector<char> was_late_;
  std::vector<Updated> updated_;
  std::vector<StatePiece> done_;
  int64_t taken_over_ = 0;
};

}  // namespace zero::detail
