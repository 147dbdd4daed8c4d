#pragma once
// Where the sums of gradients are: states, borrowed while something is added to them.

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "optim/state_store.h"
#include "sharding/device_sums.h"
#include "sharding/unit.h"

namespace zero::detail {

/// This rank's own sum of a whole unit, where it adds up several micro-batches before it sends.
inline constexpr std::string_view kOwnGradientState = "own gradient";

class GradientSums {
 public:
  /// Some of one unit's, for as long as somebody has it.
  struct Loan {
    StateStore::Lease lease;
    at::Tensor sum;  // [shard_numel]: over ranks and micro-batches
    at::Tensor own;  // [padded_numel]; undefined without own sums
  };

  /// What becomes of a unit's sum.
  enum class End : char {
    Waits,       // for the step, where it lies
    UsedUp,      // before, from memory: on disk are only sums of earlier micro-batches
    UsedUpHere,  // and there are none
  };

  /// Creates the states of the trained units in their store, elements of `dtype`. With `keeps_own` the sum of
  /// this rank's shard takes the place of its own contribution, which has been packed by then: in memory it
  /// is a part of it, on disk they lie apart. `units` are not empty and outlive this. `ends`: one a unit.
  GradientSums(const std::vector<Unit>& units, int shard_rank, bool keeps_own, at::ScalarType dtype,
               std::vector<End> ends);

  const at::TensorOptions& options() const { return options_; }
  /// To add to a trained unit's sum, or to its own sum: they have memory, with no values at first. Shared by
  /// all that have it at a time. Of sums in memory a loan has both.
  std::shared_ptr<const Loan> borrow(int unit);
  std::shared_ptr<const Loan> borrow_own(int unit);
  /// The sums have no values any more, and no memory where it serves others. Nobody has a loan.
  void discard();

  /// Of sums that do not stay on a device: called with a unit's sum when a loan of it ends, before it
  /// leaves. On the thread and the stream of whoever had the loan.
  using Leaves = std::function<void(int unit, const at::Tensor& sum)>;
  void tell_of_leaving(Leaves leaves) { leaves_ = std::move(leaves); }
  /// From here on sums that are used up stay in memory, borrowed, until then; or until they are let go of.
  void keep_used_up() { keeps_used_up_ = true; }
  /// One that is kept, [shard_numel]; undefined of other units.
  at::Tensor kept(int unit) const;
  /// Its values are needed no more.
  void use_up(int unit);
  /// Those that are kept still go where they lie between backward and step.
  void let_go();

  /// Loans that end now leave no values behind.
  void abandon() { abandoned_ = true; }

 private:
  /// Which sums of a unit a loan has: `sum` is a part of `own` where it has both.
  enum class Part { Sum, Own, Both };
  static bool has(const std::unique_ptr<DeviceSums>& sums, int unit) {
    return sums != nullptr && sums->has(unit);
  }
  std::shared_ptr<const Loan> lend_on_device(int unit, std::weak_ptr<const Loan>& known, DeviceSums& from,
                                             Part part);
  void put_back(int unit, const Loan& loan, DeviceSums& into, Part part) noexcept;
  bool is_brief(int unit) const { return ends_[static_cast<size_t>(unit)] == End::UsedUpHere; }
  bool lie_apart(int unit) const { return is_brief(unit) || states_.is_on_disk(unit, kGradientState); }
  std::shared_ptr<const Loan> lend_sum(int unit);
  void end_loan(int unit, Loan& loan) noexcept;
  std::shared_ptr<const Loan> lend(int unit, std::weak_ptr<const Loan>& known,
                                   std::span<const std::string_view> kinds);

  StateStore& states_;
  at::TensorOptions options_;
  bool keeps_own_;
  int64_t shard_rank_;
  // Beside a device, or null: sums that leave it, own ones where there are some; and of those that lie apart,
  // on a disk, the sums over ranks.
  std::unique_ptr<DeviceSums> leaving_, leaving_apart_;
  Leaves leaves_;
  bool abandoned_ = false;
  std::vector<End> ends_;
  bool keeps_used_up_ = false;
  std::vector<char> is_used_up_;                   // per unit
  std::vector<std::shared_ptr<const Loan>> kept_;  // per unit: they ask the one above when they end
  std::exception_ptr failure_;                     // of a loan that ended
  std::vector<std::weak_ptr<const Loan>> loans_, own_loans_;  // per unit
};

}  // namespace zero::detail
