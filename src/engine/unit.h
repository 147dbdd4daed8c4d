#pragma once
// A unit's tensors on this rank.
//
//   slab    the storage that the module's parameters are views of; readable only while the unit is resident
//   full    [padded_numel] the memory behind it: defined while the unit has memory
//   common  [padded_numel] one memory for all ranks of the shard group; undefined where they share none. It
//   is what
//           full is, unless a scope modifies the unit in a copy of its own
//   shard   [shard_numel] the part this rank owns: a view of common or of a replicated full, else its own
//           memory
//   master  [shard_numel] fp32; `shard` itself where the unit is fp32; int16 where it is what the bf16 shard
//           lacks (optim/split_master.h); undefined for frozen units

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/dispatch.h"
#include "zero/mesh.h"
#include "zero/optimizer.h"
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

struct Unit {
  UnitLayout layout;
  std::shared_ptr<UnitTag> tag;
  c10::Storage slab;
  at::Tensor full, common, shard, master;
  SlabState state = SlabState::Absent;
  Work fetch;
  int pins = 0;  // gather scopes that hold it

  /// Throws Internal for an illegal transition.
  void move_to(SlabState next);
  /// The best values there are of the shard's elements [begin, begin + count): the master's in fp32, or a
  /// frozen shard's. A view where they lie in memory like that.
  at::Tensor values(int64_t begin, int64_t count) const;
  /// Whether values() is a view.
  bool has_plain_values() const;
  /// Sets shard and master. `values`: [count] of any floating dtype.
  void set_values(int64_t begin, const at::Tensor& values);
  /// The master takes over what was written into the shard.
  void adopt_shard();
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
