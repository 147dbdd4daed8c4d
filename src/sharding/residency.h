#pragma once
// Carries out what the residency policy decides: all-gathers, waits, evictions. The policy decides, this
// class moves. Shards that are kept beside a device are copied into their place of the slab on a stream of
// their own, on which the all-gather follows: the device computes meanwhile. Shards on disk are read first:
// the read starts when the policy decides to fetch, and the all-gather at the next decision or need, not when
// the read happens to be over: all ranks issue the same collectives in the same order.

#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "compute/host_link.h"
#include "plan/residency_policy.h"
#include "sharding/unit.h"
#include "zero/mesh.h"

namespace zero::detail {

struct ResidencyCounters {
  int64_t gathers = 0;            // all-gathers started
  int64_t gathered_elements = 0;  // their full size, padding included
  int64_t awaited_gathers = 0;    // of them, those that an operator asked for: not fetched ahead
  int64_t resident_bytes = 0;     // slabs with memory beyond what this rank owns, now
  int64_t peak_resident_bytes = 0;
};

class Residency {
 public:
  /// `units` outlives the residency. Slabs start Resident where parameters are replicated or in common
  /// memory, else Absent. `trace`, if not null, gets a compute span for every unit that operators need.
  ///
  /// `seals`: outside forward, backward and gather scopes, parameters whose slab does not keep what is
  /// written into it cannot be read either, resident or not: nothing is written behind the shards' back.
  Residency(std::vector<Unit>& units, Group shard_group, const Plan& plan, Trace* trace, bool seals = true);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  /// An evaluation may begin inside a training pass; end_pass() ends the one that began last.
  void begin_pass(ResidencyPolicy::Pass pass);
  /// After a forward or a backward that does not end its pass.
  void trim();
  void end_pass();
  /// Ends all passes; the schedules stay as they were.
  void abandon_passes();
  bool in_pass(ResidencyPolicy::Pass pass) const { return policy_.in_pass(pass); }

  /// Called by operators: makes the units resident. Safe from autograd's threads.
  void need(std::span<const int> units);

  /// Waits for the all-gathers that are under way: they have borrowed shards. Before shards are written.
  void finish_fetches();

  /// After finish_fetches(), the shards of the trainable units changed (or of all, when values are loaded):
  /// their slabs are out of date.
  void values_changed(bool frozen_too = false);

  /// Throws Usage, naming the unit, while a gather scope is open.
  void require_no_pins() const;

  /// Gathers and keeps a unit until unpin(); to be modified, in memory of this rank's own. Collective.
  void pin(int unit, bool modify);
  void unpin(int unit);

  const ResidencyCounters& counters() const { return counters_; }
  const ResidencyPolicy& policy() const { return policy_; }
  /// The units of all-gathers since the last call, in order; ranks that went the same way have the same.
  std::vector<int> take_order();

 private:
  template <class Act>
  void at_pass_border(Act act);
  void apply(const ResidencyPolicy::Actions& actions);
  void start(int unit);
  void start_gather(int unit);
  void gather_what_was_read();
  void upload(Unit& unit, const at::Tensor& into);
  void finish(int unit);
  void let_go_of_shards(bool all);
  void drop(int unit);
  void open(int unit);
  void seal(Unit& unit);
  void seal_all();
  void allocate(Unit& unit);
  void outdate(Unit& unit);
  void copy_to_modify(Unit& unit);
  void account(int64_t bytes);
  void end_span();
  bool always_resident(const Unit& unit) const {
    return unit.layout.padded_numel == 0 || (shard_group_.size() == 1 && !unit.is_away());
  }

  std::vector<Unit>& units_;
  Group shard_group_;
  bool overlap_;     // false: every fetch is waited for at once
  bool persistent_;  // slabs keep their memory
  Trace* trace_;
  bool seals_;
  int64_t budget_bytes_;
  ResidencyPolicy policy_;
  ResidencyCounters counters_;
  std::vector<at::Tensor> pool_;  // memory of evicted slabs, for the next one of that size
  int64_t pool_bytes_ = 0;
  std::optional<HostLink> link_;  // where shards are kept beside a device
  /// A shard that is lent until its copy is over.
  struct Leaving {
    StateStore::Lease shard;
    Transfer upload;
    bool is_on_disk;
  };
  std::deque<Leaving> leaving_;  // oldest first
  std::deque<int> reading_;      // units whose shards come from the disk, in the order of their all-gathers
  std::vector<int> order_;       // since take_order()
  int last_needed_ = -1;
  int computing_ = -1;  // the unit whose span is open
  Trace::Clock::time_point computing_since_;
  std::mutex mutex_;
};

}  // namespace zero::detail
