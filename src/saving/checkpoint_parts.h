#pragma once
// What a checkpoint holds, by name:
//   model/PARAMETER                fp32 master values of trainable parameters; frozen ones in their own dtype
//   optimizer/KIND/PARAMETER       fp32
//   buffer/BUFFER                  rank 0's
//   rank/R/buffer/BUFFER           another rank's, where they differ
//   rank/R/random, rank/R/random_cuda   every rank's generators, for a resume with the same number of ranks
// Ranks are those of the mesh, whatever its axes.

#include <memory>
#include <string>
#include <vector>

#include "sharding/sharded_model.h"
#include "zero/box.h"

namespace zero::detail {

inline constexpr int kEngineFormat = 1;

/// One parameter's part of one kind of values on this rank.
struct Part {
  std::string name;            // in the checkpoint
  std::vector<int64_t> shape;  // of the whole parameter
  BoxRange range;              // of it
  at::Tensor values;           // [numel], a view of the shard
  at::Tensor remainder = {};   // defined: `values` are bf16, and the checkpoint has the fp32 of both together
  std::shared_ptr<StateStore::Lease> lease = {};  // of both: they are not kept without it

  int64_t numel() const { return values.numel(); }
  at::ScalarType dtype() const { return remainder.defined() ? at::kFloat : values.scalar_type(); }
  int64_t bytes() const { return numel() * static_cast<int64_t>(c10::elementSize(dtype())); }
  /// Copies what the checkpoint has of it; `out`: [numel] of dtype().
  void copy_to(const at::Tensor& out) const;
};

/// The parts of all parameters in this rank's shards. With `share_among_replicas`, each of the ranks that
/// hold the same values, along whichever axes, has its share of them. Borrows the states for `use`.
std::vector<Part> parts_of(ShardedModel& model, bool share_among_replicas, StateStore::Use use);

/// "rank/R/", before the names of what is this rank's alone. R: its number in the mesh.
std::string own_prefix(const ShardedModel& model);
/// Under it, the generator of a device that is not the CPU: "random_cuda".
std::string device_random_name(const ShardedModel& model);

}  // namespace zero::detail
