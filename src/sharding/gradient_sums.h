#pragma once
// Where the sums of gradients are: states, borrowed while something is added to them.

#include <ATen/core/Tensor.h>

#include <memory>
#include <string_view>
#include <vector>

#include "optim/state_store.h"
#include "sharding/unit.h"

namespace zero::detail {

/// This rank's own sum of a whole unit, where it adds up several micro-batches before it sends.
inline constexpr std::string_view kOwnGradientState = "own gradient";

class GradientSums {
 public:
  /// One unit's, for as long as somebody has it.
  struct Loan {
    StateStore::Lease lease;  // of both
    at::Tensor sum;           // [shard_numel]: over ranks and micro-batches
    at::Tensor own;  // [padded_numel], of which `sum` is this rank's part; undefined without own sums
  };

  /// Creates the states of the trained units in their store, elements of `dtype`. With `keeps_own` the sum of
  /// this rank's shard takes the place of its own contribution, which has been packed by then. `units` are
  /// not empty and outlive this.
  GradientSums(const std::vector<Unit>& units, int shard_rank, bool keeps_own, at::ScalarType dtype);

  const at::TensorOptions& options() const { return options_; }
  /// To add to a trained unit's sums: they have memory, with no values at first. Shared by all that have it
  /// at a time.
  std::shared_ptr<const Loan> borrow(int unit);
  /// The sums have no values any more, and no memory where it serves others. Nobody has a loan.
  void discard();

 private:
  StateStore& states_;
  at::TensorOptions options_;
  bool keeps_own_;
  std::vector<std::weak_ptr<const Loan>> loans_;  // per unit
};

}  // namespace zero::detail
