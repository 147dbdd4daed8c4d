#pragma once
// Which units are fetched and which are evicted, and when: decisions only, no tensors, no clocks.
// Every rank plays the same policy over the same touches, so all ranks issue the same collectives in the same
// order. The plan plays it too, which is why its figures are the engine's.

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

namespace zero {

struct ResidencyOptions {
  std::vector<int64_t> unit_bytes;  // slab size of each unit
  std::vector<char> lasting = {};  // per unit: no step changes its values (it is frozen); empty: none of them
  // Per unit: never evicted, and beside the budget; empty: none of them.
  std::vector<char> persistent = {};
  // Resident slabs may take this much; the units that one operator needs at once may exceed it.
  int64_t budget_bytes = std::numeric_limits<int64_t>::max();
  // Slabs fetched before they are needed may take this much of it; 0 fetches on demand only.
  int64_t prefetch_bytes = std::numeric_limits<int64_t>::max();
};

/// Belady's rule (evict what is used farthest in the future) over a schedule that the last pass of its kind
/// recorded; units differ in size, so others go in its place where fewer bytes have to come again. A *pass*
/// is what repeats: all forwards and backwards between two optimizer steps, whatever the order of their
/// micro-batches, or a forward without gradient. Before the first pass is over, and for
/// touches that the schedule does not foresee, units are fetched on demand and the least recently touched one
/// goes first.
class ResidencyPolicy {
 public:
  /// What the caller must do, in this order: drop `evict`, then start fetching `fetch`.
  struct Actions {
    std::vector<int> evict;
    std::vector<int> fetch;
  };
  /// Values end with a training pass, but for lasting units; what an evaluation leaves resident serves the
  /// next.
  enum class Pass { Train, Evaluate };

  explicit ResidencyPolicy(const ResidencyOptions& options);

  /// Opens a pass and prefetches its first units. An evaluation may open inside a training pass, which goes
  /// on where it was when the evaluation ends.
  Actions begin_pass(Pass pass);

  /// An operator needs all of `units` now. They are resident or being fetched afterwards, and are not evicted
  /// by this call.
  Actions touch(std::span<const int> units);

  /// Between a forward and a backward: evicts down to the budget.
  Actions trim();

  /// Ends the pass that was opened last; what was touched in it becomes the schedule of its kind. Evicts down
  /// to the budget.
  Actions end_pass();

  /// Ends all open passes without recording them: the schedules stay. Evicts down to the budget.
  Actions abandon_passes();

  /// Resident values are stale (the optimizer stepped), those of lasting units too if `all`: they must be
  /// fetched again. Memory of evicted units is the caller's matter: for the policy they are not resident any
  /// more.
  void forget_values(bool all = false);

  /// Marks a unit resident or gone by other means (a gather scope).
  void set_resident(int unit, bool resident);

  bool resident(int unit) const { return units_[unit].resident; }
  bool is_ahead(int unit) const { return units_[unit].ahead; }
  int64_t resident_bytes() const { return resident_bytes_; }
  bool in_pass() const { return in_pass(Pass::Train) || in_pass(Pass::Evaluate); }
  bool in_pass(Pass pass) const { return state(pass).open; }
  /// Units in the order the last pass of this kind touched them, repetitions in a row left out. Empty before
  /// it.
  const std::vector<int>& schedule(Pass pass) const { return state(pass).order; }
  /// How often a pass of this kind ended with another order than the one before: 1 once it has settled.
  int64_t recordings(Pass pass) const { return state(pass).recordings; }

 private:
  struct Unit {
    int64_t bytes = 0;
    bool lasting = false;
    bool persistent = false;
    bool resident = false;
    bool ahead = false;       // prefetched and not yet touched
    int64_t last_touch = -1;  // for the order without a schedule
  };
  struct PassState {
    std::vector<int> order;                   // the schedule
    std::vector<std::vector<int>> positions;  // per unit, ascending places in `order`
    bool values_last = false;
    bool open = false;
    int64_t position = 0;     // next place in `order`
    std::vector<int> record;  // since the pass was opened
    int64_t recordings = 0;
  };

  PassState& state(Pass pass) { return passes_[pass == Pass::Train ? 0 : 1]; }
  const PassState& state(Pass pass) const { return passes_[pass == Pass::Train ? 0 : 1]; }
  const PassState& current() const { return state(pass_); }
  void record(PassState& pass);
  void close(PassState& pass);
  void advance(int unit);
  int64_t next_use(int unit, int64_t from) const;
  int64_t charged_bytes(int unit) const { return units_[unit].persistent ? 0 : units_[unit].bytes; }
  using Candidates = std::vector<std::pair<int64_t, int>>;  // next use and unit, the first to go first
  std::vector<int> first_that_free(const Candidates& candidates, int64_t bytes, int without) const;
  int64_t bytes_again(std::span<const int> units, int64_t from) const;
  std::vector<int> victims(int64_t bytes, int64_t from, std::span<const int> keep) const;
  void make_room(int64_t bytes, std::span<const int> keep, Actions& actions);
  void evict(int unit, Actions& actions);
  void fetch(int unit, bool ahead, Actions& actions);
  void prefetch(std::span<const int> keep, Actions& actions);

  std::vector<Unit> units_;
  int64_t budget_bytes_;
  int64_t prefetch_bytes_;
  int64_t resident_bytes_ = 0;
  int64_t persistent_bytes_ = 0;  // of them
  int64_t ahead_bytes_ = 0;
  int64_t clock_ = 0;

  PassState passes_[2];
  Pass pass_ = Pass::Train;  // the one opened last
};

}  // namespace zero
