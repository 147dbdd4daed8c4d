#pragma once
// Carries out what the residency policy decides: all-gathers, waits, evictions. The policy decides, this
// class moves.

#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "engine/unit.h"
#include "zero/mesh.h"
#include "zero/residency_policy.h"

namespace zero::detail {

struct ResidencyCounters {
  int64_t gathers = 0;            // all-gathers started
  int64_t gathered_elements = 0;  // their full size, padding included
  int64_t resident_bytes = 0;     // slabs with memory beyond what this rank owns, now
  int64_t peak_resident_bytes = 0;
};

class Residency {
 public:
  struct Options {
    int64_t budget_bytes = 0;
    int64_t prefetch_bytes = 0;
    bool overlap = true;     // false: fetch on demand and wait at once; same results
    bool persistent = true;  // parameters are replicated or in common memory: slabs keep their memory
    Trace* trace = nullptr;  // gets a compute span for every unit that operators need
  };
  /// `units` outlives the residency. Slabs start Resident (persistent) or Absent.
  Residency(std::vector<Unit>& units, Group shard_group, Options options);
  ~Residency();
  Residency(const Residency&) = delete;
  Residency& operator=(const Residency&) = delete;

  void begin_pass(ResidencyPolicy::Pass pass, bool values_last);
  void end_forward();
  void end_pass();
  bool in_pass() const { return policy_.in_pass(); }

  /// Called by operators: makes the units resident. Safe from autograd's threads.
  void need(std::span<const int> units);

  /// The shards of the trainable units changed (or of all, when values are loaded): their slabs are out of
  /// date.
  void values_changed(bool frozen_too = false);

  /// Throws Usage, naming the unit, while a gather scope is open.
  void require_no_pins() const;

  /// Gathers and keeps a unit until unpin(); to be modified, in memory of this rank's own. Collective.
  void pin(int unit, bool modify);
  void unpin(int unit);

  const ResidencyCounters& counters() const { return counters_; }
  const ResidencyPolicy& policy() const { return policy_; }
  /// A number from the order of all-gathers since the last call; ranks that went the same way have the same.
  uint32_t take_order_hash();

 private:
  void apply(const ResidencyPolicy::Actions& actions);
  void start(int unit);
  void finish(int unit);
  void drop(int unit);
  void allocate(Unit& unit);
  void outdate(Unit& unit);
  void copy_to_modify(Unit& unit);
  void account(int64_t bytes);
  void end_span();
  bool always_resident(const Unit& unit) const {
    return shard_group_.size() == 1 || unit.layout.padded_numel == 0;
  }

  std::vector<Unit>& units_;
  Group shard_group_;
  Options options_;
  ResidencyPolicy policy_;
  ResidencyCounters counters_;
  std::vector<at::Tensor> pool_;  // memory of evicted slabs, for the next one of that size
  int64_t pool_bytes_ = 0;
  uint32_t order_hash_ = 0;
  int last_needed_ = -1;
  int computing_ = -1;  // the unit whose span is open
  Trace::Clock::time_point computing_since_;
  std::mutex mutex_;
};

}  // namespace zero::detail
