#pragma once
// A unit's tensors on this rank.
//
//   slab    the storage that the module's parameters are views of; readable only while the unit is resident
//   full    [padded_numel] the memory behind it: defined while the unit has memory
//   common  [padded_numel] one memory for all ranks of the shard group; undefined where they share none.
//           `full` is the same, unless a scope modifies the unit in a copy of its own
//   shard   [shard_numel] the part this rank owns: a view of common or of a replicated full, else its own
//           memory
//   master  [shard_numel] in the store: fp32; the shard itself where the unit is fp32; int16 where it is what
//           the bf16 shard lacks (optim/split_master.h); missing for frozen units

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "optim/shard_optimizer.h"
#include "seam/dispatch.h"
#include "zero/mesh.h"
#include "zero/plan.h"

namespace zero::detail {

class Residency;

/// Leads from a parameter's storage to its unit. `residency` is cleared when the engine ends.
struct UnitTag : OperatorListener {
  UnitTag(int unit, const UnitLayout* layout) : unit(unit), layout(layout) {}
  void before(const c10::OperatorHandle& op, OperatorKind kind, const std::vector<StorageTag*>& tags,
              const torch::jit::Stack& stack) override;

  Residency* residency = nullptr;
  int unit;
  const UnitLayout* layout;
};

/// What the memory of a slab holds. Legal transitions are in unit.cpp.
enum class SlabState {
  Absent,    // no memory
  Stale,     // memory with values from before the last step; only this rank's shard is up to date
  Fetching,  // an all-gather is filling it
  Resident,  // current values; the parameters are readable
};

/// What tells, at the end of a gather scope, which values were written in it.
struct ScopeRecord {
  int modifying = 0;             // open scopes that modify
  at::Tensor before;             // while there are some: the shard when the first of them began
  std::vector<uint64_t> checks;  // while others are open only: of each parameter's part of the shard
};

/// What stands for the fp32 values of a unit's shard.
enum class MasterForm {
  None,       // frozen: the shard is all there is
  Shard,      // the fp32 shard itself
  Whole,      // an fp32 copy
  Remainder,  // what the bf16 shard lacks
};

struct Unit {
  UnitLayout layout;
  int index = 0;                 // in the plan and the store
  StateStore* states = nullptr;  // has the shard and the master
  MasterForm master = MasterForm::None;
  std::shared_ptr<UnitTag> tag;
  c10::Storage slab;
  at::Tensor full, common, shard;
  SlabState state = SlabState::Absent;
  bool is_open = false;  // the parameters are readable (hidden ones may be resident too)
  Work fetch;
  int pins = 0;  // gather scopes that hold it
  ScopeRecord scope;

  /// Throws Internal for an illegal transition.
  void move_to(SlabState next);
  /// The best values there are of the shard's elements [begin, begin + count): the master's in fp32, or a
  /// frozen shard's. A view of the shard where they are in it.
  at::Tensor values(int64_t begin, int64_t count) const;
  /// Whether this rank keeps all values in memory of its own, not only its shard.
  bool owns_whole() const { return full.defined() && !common.defined(); }
  /// Whether the master is memory beside the shard.
  bool has_own_master() const { return master == MasterForm::Whole || master == MasterForm::Remainder; }
  StateStore::Lease lend_master(StateStore::Use use) const {
    return states->lend(index, {kMasterState}, use);
  }
  /// Sets shard and master. `values`: [count] of any floating dtype.
  void set_values(int64_t begin, const at::Tensor& values);
  /// Takes over what was written into `mine`, this rank's part of full, since scope.before: elements whose
  /// bits are the same keep their master.
  void adopt_changes(const at::Tensor& mine);
  /// The master of elements [begin, end) takes over the shard's values.
  void adopt_shard(int64_t begin, int64_t end);
  /// Whether the next step starts from what is written into the slab, by nobody else and to the bit.
  bool keeps_writes() const;
  /// Makes the parameters readable, or not.
  void expose();
  void hide();
};

/// What reading a parameter of an absent unit says.
std::string hidden_message(const UnitLayout& layout);

/// The view of the slab that stands for a parameter.
at::Tensor view_of(const Unit& unit, const UnitParameter& parameter);

/// The part of every parameter that shard `rank` holds. `first_parameter` is the index of the unit's first
/// parameter over all units.
std::vector<ShardSegment> segments_of(const UnitLayout& layout, int rank, int first_parameter);

}  // namespace zero::detail
