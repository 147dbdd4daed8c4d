#pragma once
// What a checkpoint holds, by name:
//   model/PARAMETER                fp32 master values of trainable parameters; in their own dtype frozen ones
//   and
//                                  those without a master, or whose masters are not saved
//   optimizer/KIND/PARAMETER       fp32
//                                  KIND_codes (u8) and KIND_scales (fp32, one for 256 elements): in 8 bits
//   buffer/BUFFER                  rank 0's
//   rank/R/buffer/BUFFER           another rank's, where they differ
//   rank/R/random, rank/R/random_cuda   every rank's generators, for a resume with the same number of ranks
// Ranks are those of the mesh, whatever its axes.

#include <memory>
#include <string>
#include <vector>

#include "base/part_pieces.h"
#include "sharding/sharded_model.h"

namespace zero::detail {

inline constexpr int kEngineFormat = 1;

/// Some values of a part, and what they are borrowed by: they are not kept without it.
struct PartValues {
  std::shared_ptr<StateStore::Lease> lease;
  at::Tensor values;          // [numel]
  at::Tensor remainder = {};  // defined: `values` are bf16, and the checkpoint has the fp32 of both together

  /// Copies what the checkpoint has of them; `out`: [numel] of the part's dtype.
  void copy_to(const at::Tensor& out) const;
};

/// One parameter's part of one kind of values on this rank: where they are, borrowed by nobody yet.
struct Part {
  std::string name;            // in the checkpoint
  std::vector<int64_t> shape;  // of the whole parameter
  // Of it, in the order of its boxes; several where the rank holds several boxes of the parameter, joined.
  std::vector<PartPiece> pieces;
  StateStore* states = nullptr;
  StatePiece where;                   // in there
  std::string kind;                   // of the values
  bool is_split = false;              // kMasterState, beside bf16 kParameterState, has what they lack of fp32
  at::ScalarType dtype = at::kFloat;  // in the checkpoint
  int64_t elements_each = 1;          // of the parameter, that share a value

  bool is_joined() const { return pieces.size() != 1 || pieces[0].row != pieces[0].part_row; }
  const BoxRange& range() const { return pieces.front().range; }  // unless it is joined
  int64_t numel() const { return (where.end - where.begin + elements_each - 1) / elements_each; }
  int64_t bytes() const { return numel() * static_cast<int64_t>(c10::elementSize(dtype)); }
  bool is_on_disk() const {
    return states->is_on_disk(where.unit, kind) || (is_split && states->is_on_disk(where.unit, kMasterState));
  }
  /// Its elements [begin, begin + count), or all.
  PartValues borrow(StateStore::Use use, int64_t begin, int64_t count) const;
  PartValues borrow(StateStore::Use use) const { return borrow(use, 0, numel()); }
};

/// A piece's values among those of its part, on the CPU and contiguous, in the order of its range; and back.
at::Tensor taken_piece(const at::Tensor& values, const PartPiece& piece);
void put_piece(const at::Tensor& piece_values, const PartPiece& piece, const at::Tensor& values);

/// The parts of all parameters in this rank's shards, those of one unit and kind together. With
/// `share_among_replicas`, each of the ranks that hold the same values, along whichever axes, has its share
/// of them.
std::vector<Part> parts_of(ShardedModel& model, bool share_among_replicas);

/// "rank/R/", before the names of what is this rank's alone. R: its number in the mesh.
std::string own_prefix(const ShardedModel& model);
/// Under it, the generator of a device that is not the CPU: "random_cuda".
std::string device_random_name(const ShardedModel& model);

}  // namespace zero::detail
