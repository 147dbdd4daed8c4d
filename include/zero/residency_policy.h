#pragma once
// Which units are fetched and which are evicted, and when: decisions only, no tensors, no clocks.
// Every rank plays the same policy over the same touches, so all ranks issue the same collectives in the same
// order. The plan plays it too, which is why its figures are the engine's.

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace zero {

struct ResidencyOptions {
  std::vector<int64_t> unit_bytes;  // slab size of each unit
  // Resident slabs may take this much; the units that one operator needs at once may exceed it.
  int64_t budget_bytes = std::numeric_limits<int64_t>::max();
  // Slabs fetched before they are needed may take this much of it; 0 fetches on demand only.
  int64_t prefetch_bytes = std::numeric_limits<int64_t>::max();
};

/// Belady's rule (evict what is used farthest in the future) over a schedule that the previous pass recorded.
/// A *pass* is what repeats: a forward with its backward, or a forward without gradient. Before the first
/// pass is over, and for touches that the schedule does not foresee, units are fetched on demand and the
/// least recently touched one goes first.
class ResidencyPolicy {
 public:
  /// What the caller must do, in this order: drop `evict`, then start fetching `fetch`.
  struct Actions {
    std::vector<int> evict;
    std::vector<int> fetch;
  };
  enum class Pass { Train, Evaluate };

  explicit ResidencyPolicy(const ResidencyOptions& options);

  /// Starts a pass: prefetches its first units. `values_last`: this pass ends without an optimizer step, so
  /// what is resident at its end serves the next one.
  Actions begin_pass(Pass pass, bool values_last);

  /// An operator needs all of `units` now. They are resident or being fetched afterwards, and are not evicted
  /// by this call.
  Actions touch(std::span<const int> units);

  /// Between forward and backward, and when a pass ends: evicts down to the budget.
  Actions trim();

  /// Ends the pass; what was touched becomes the schedule of its kind.
  Actions end_pass();

  /// All resident values are stale (the optimizer stepped): they must be fetched again. Memory of evicted
  /// units is the caller's matter: for the policy nothing is resident any more.
  void forget_values();

  /// Marks a unit resident or gone by other means (a gather scope).
  void set_resident(int unit, bool resident);

  bool resident(int unit) const { return units_[static_cast<size_t>(unit)].resident; }
  int64_t resident_bytes() const { return resident_bytes_; }
  bool in_pass() const { return in_pass_; }
  /// Units in the order the last pass of this kind touched them, repetitions in a row left out. Empty before
  /// it.
  const std::vector<int>& schedule(Pass pass) const { return schedules_[static_cast<size_t>(pass)].order; }

 private:
  struct Unit {
    int64_t bytes = 0;
    bool resident = false;
    bool ahead = false;       // prefetched and not yet touched
    int64_t last_touch = -1;  // for the order without a schedule
  };
  struct Schedule {
    std::vector<int> order;
    std::vector<std::vector<int>> positions;  // per unit, ascending places in `order`
    bool empty() const { return order.empty(); }
  };

  const Schedule& current() const { return schedules_[static_cast<size_t>(pass_)]; }
  void advance(int unit);
  int64_t next_use(int unit, size_t from) const;
  std::vector<int> victims(int64_t bytes, size_t from, std::span<const int> keep) const;
  void make_room(int64_t bytes, std::span<const int> keep, Actions& actions);
  void evict(int unit, Actions& actions);
  void fetch(int unit, bool ahead, Actions& actions);
  void prefetch(std::span<const int> keep, Actions& actions);

  std::vector<Unit> units_;
  int64_t budget_bytes_;
  int64_t prefetch_bytes_;
  int64_t resident_bytes_ = 0;
  int64_t ahead_bytes_ = 0;
  int64_t clock_ = 0;

  Schedule schedules_[2];
  Pass pass_ = Pass::Train;
  bool in_pass_ = false;
  bool values_last_ = false;
  size_t position_ = 0;  // next place in the current schedule
  std::vector<int> record_;
};

}  // namespace zero
