#pragma once
// A unit's tensors on this rank.
//
//   slab    the storage that the module's parameters are views of; readable only while the unit is resident
//   full    [padded_numel] the memory behind it: defined while the unit has memory. Of a shard that is away
//           (on disk, or on the host beside a device) it is a copy, of all ranks' or, of one rank alone, of
//           its own
//   common  [padded_numel] one memory for all ranks of the shard group; undefined where they share none.
//           `full` is the same, unless a scope modifies the unit in a copy of its own
//
// In the store, by the unit's index:
//   shard   [shard_numel] the part this rank owns: a slice of common or of a replicated full, else the
//   store's
//           own
//   master  [shard_numel] fp32; the shard itself where the unit is fp32; int16 where it is what the bf16
//   shard
//           lacks (optim/split_master.h); missing for frozen units

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "compute/host_link.h"
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
  Reading,   // memory, and this rank's shard is on its way from the disk
  Fetching,  // an all-gather is filling it
  Resident,  // current values; the parameters are readable
};

/// What tells, at the end of a gather scope, which values were written in it.
struct ScopeRecord {
  int modifying = 0;  // open scopes that modify
  // While there are some: the shard when the first of them began; undefined where it is not what they write.
  at::Tensor before;
  std::vector<uint64_t> checks;  // while others are open only: of each parameter's part of the shard
};

/// What stands for the fp32 values of a unit's shard.
enum class MasterForm {
  None,       // frozen: the shard is all there is
  Shard,      // the shard itself: fp32, or bf16 that is rounded stochastically
  Whole,      // an fp32 copy
  Remainder,  // what the bf16 shard lacks
};

/// An all-gather under way, or about to begin, for which the shard is borrowed.
struct SlabFetch {
  StateStore::Lease shard;
  Transfer upload;  // of the shard into this rank's part of full, where it is kept beside a device
  Work gather;
};

struct Unit {
  UnitLayout layout;
  int index = 0;                 // in the plan and the store
  StateStore* states = nullptr;  // has the shard and the master
  bool shard_is_slice = false;   // of memory that has the whole: the store has adopted it
  MasterForm master = MasterForm::None;
  std::shared_ptr<UnitTag> tag;
  c10::Storage slab;
  at::Tensor full, common;
  SlabState state = SlabState::Absent;
  bool is_open = false;  // the parameters are readable (hidden ones may be resident too)
  SlabFetch fetch;
  int pins = 0;  // gather scopes that hold it
  ScopeRecord scope;

  /// Throws Internal for an illegal transition.
  void move_to(SlabState next);
  /// Of its values: its dtype, on the mesh's device.
  at::TensorOptions options() const;
  /// The best values there are of the shard, [shard_numel], from what lend_values() has lent: the master's in
  /// fp32, or a frozen shard's. Lent memory itself where they are in it.
  at::Tensor values(const StateStore::Lease& lease) const;
  /// Whether this rank keeps all values in memory of its own, not only its shard.
  bool owns_whole() const { return full.defined() && !common.defined(); }
  /// Whether what is written into full is written into the shard.
  bool shard_lies_in_full() const {
    return shard_is_slice && full.defined() && (!common.defined() || full.is_same(common));
  }
  /// Whether the shard is on disk while nobody reads it.
  bool is_on_disk() const { return layout.tiers.parameter == Tier::Disk && layout.padded_numel > 0; }
  /// Whether it is on the host or on disk beside a device, which gets a copy for every gather.
  bool is_beside_device() const {
    return layout.tiers.parameter != Tier::Device && layout.padded_numel > 0 && !slab.device().is_cpu();
  }
  /// Either: `full` is a copy of what is kept elsewhere.
  bool is_away() const { return is_on_disk() || is_beside_device(); }
  /// Whether the master is memory beside the shard.
  bool has_own_master() const { return master == MasterForm::Whole || master == MasterForm::Remainder; }
  StateStore::Lease lend_shard(StateStore::Use use) const {
    return states->lend(index, {kParameterState}, use);
  }
  /// Shard and master.
  StateStore::Lease lend_values(StateStore::Use use) const {
    return states->lend(index, {kParameterState, kMasterState}, use);
  }
  /// Sets shard and master. `values`: [count] of any floating dtype.
  void set_values(int64_t begin, const at::Tensor& values);
  /// Takes over what was written into `mine`, this rank's part of full, since scope.before (or the shard,
  /// where that is undefined): elements whose bits are the same keep their master.
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

/// Which matrices of the unit are updated as such: those of two dimensions whose group does not say
/// `elementwise`. `group_of`: by parameter, over all units.
void find_matrices(const UnitLayout& layout, int first_parameter, std::span<const int> group_of,
                   std::span<const ParameterGroup> groups, OptimizerShard& shard);

/// Whole shapes of the unit's parameters, for rules that keep means over rows and columns.
void find_factored(const UnitLayout& layout, int first_parameter, OptimizerShard& shard);

}  // namespace zero::detail
