#pragma once
// The optimizer's step of units whose gradients are final, while backward goes on with others: what comes
// from the disk and goes there does so beside the computation. Nothing of it counts before the step: a
// gradient that is not finite, a rate that was changed, more of a gradient, or values written by hand, and
// what was done ahead never was (AheadUpdates). But what cannot be taken back or made again binds: an update
// in place, and one that has used up its gradient.

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
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
  /// Everything given by reference outlives this. `parameters`: of all units. `in_place`: see
  /// StepInBackward::InPlace.
  StepAhead(std::vector<Unit>& units, StateStore& states, AheadUpdates& updates, Gradients& gradients,
            int parameters, bool in_place);

  /// Called with a sum that is used up, before it is.
  using Sees = std::function<void(int unit, const at::Tensor& sum)>;
  void tell_of_use(Sees sees) { sees_ = std::move(sees); }

  /// A backward begins after which the optimizer steps with the rates of `input`. `order`: units as their
  /// sums become final; those of which nothing is used left out.
  void begin(std::span<const int> order, const StepInput& input);
  /// Of a unit all of whose parameters have a gradient on this rank; ignored for others, and outside of
  /// begin() and take_over(). `sum_is_final` does nothing but note it: lent gradients may be about.
  void sum_is_final(int unit) override;
  /// Throws Usage where what came first binds.
  void sum_changes(int unit) override;
  /// Updates what has become possible. Waits for the disk only where sums that are used up wait in memory
  /// for more than one unit. `used`: parameters that have a gradient here.
  void advance(std::span<const char> used);
  /// Backward is over, and no shard is on its way to a gather: updates all units whose sums are used up.
  void finish(std::span<const char> used);
  /// Nothing of it happens. False where some of it has, in place: the states are lost.
  bool forget();
  /// Between begin() and take_over() or forget().
  bool is_open() const { return is_open_; }
  /// Whether something of it binds.
  bool binds() const { return is_written_ || std::find(begun_.begin(), begun_.end(), 1) != begun_.end(); }
  /// Whether the unit's gradient is no more.
  bool has_used_up(int unit) const { return begun_[static_cast<size_t>(unit)] != 0; }
  /// The step happens: writes the new parameters, and returns the pieces that the optimizer need not update.
  /// Nothing but pieces of the same rates, scale and betas counts; throws Usage where others bind.
  std::span<const StatePiece> take_over(const StepInput& input);

  /// Pieces updated ahead in all steps so far.
  int64_t pieces() const { return taken_over_; }

 private:
  struct Updated {
    StatePiece piece;
    at::Tensor parameter;  // its new elements; undefined where they are on disk
    uint64_t check;        // of those it was made from, where hands may write them
  };
  bool is_used(int unit, std::span<const char> used) const;
  bool is_on_its_way(int unit) const;
  bool takes_next_unit(std::span<const char> used);
  void go(std::span<const char> used, bool is_over);
  void update(const StatePiece& piece);
  uint64_t check_of_parameter(const StatePiece& piece) const;

  std::vector<Unit>& units_;
  StateStore& states_;
  AheadUpdates& updates_;
  Gradients& gradients_;
  bool in_place_;
  Sees sees_;
  std::vector<int> first_parameter_;  // per unit
  std::vector<char> all_used_;        // per parameter
  bool is_open_ = false;
  StepInput input_;
  std::deque<int> final_;         // units that wait for their turn
  std::deque<StatePiece> to_do_;  // of the first of them
  std::vector<char> is_late_;     // per unit: in this backward, or in the one before
  std::vector<char> was_late_;
  std::vector<char> said_final_;  // per unit
  std::vector<char> begun_;       // per unit: its sum is being used up
  bool is_written_ = false;       // in place
  std::vector<Updated> updated_;
  std::vector<StatePiece> done_;
  int64_t taken_over_ = 0;
};

}  // namespace zero::detail
