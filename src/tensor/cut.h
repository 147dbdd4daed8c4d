#pragma once
// How a tensor is cut over the ranks of a tensor-parallel axis. Arithmetic on sizes, and slices of tensors.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zero::detail {

/// One dim is cut; `blocks` are the sizes that lie along it one behind the other, of which each rank holds
/// its part ({c, c, c} for a product that makes queries, keys and values at once).
struct Cut {
  int64_t dim = -1;  // -1: not cut, all ranks hold it whole
  std::vector<int64_t> blocks;
  std::string origin;  // the parameter it comes from, for errors and the names of collectives

  explicit operator bool() const { return dim >= 0; }
  /// Size of the whole tensor along `dim`.
  int64_t global_size() const;
  /// Whether the same elements of the dim lie on each rank.
  bool same_blocks(const Cut& other) const { return blocks == other.blocks; }
};

/// A rank among those of the axis.
struct Place {
  int rank = 0, ranks = 1;
};

/// The part of n elements that a rank holds: sizes differ by at most one.
inline int64_t part_begin(int64_t n, Place at) { return n * at.rank / at.ranks; }
inline int64_t part_size(int64_t n, Place at) { return n * (at.rank + 1) / at.ranks - part_begin(n, at); }

/// What a rank holds along the cut dim: (begin, size) in each block of the whole, in order.
std::vector<std::pair<int64_t, int64_t>> pieces_of(const Cut& cut, Place at);
int64_t local_size(const Cut& cut, Place at);
/// The largest local_size() of all ranks.
int64_t largest_local_size(const Cut& cut, int ranks);

/// A rank's part of a whole tensor: a view where it is one piece.
at::Tensor part_of(const at::Tensor& whole, const Cut& cut, Place at);
/// The whole from the parts of all ranks, each of which may be longer than its local_size() along the dim.
at::Tensor joined(const std::vector<at::Tensor>& parts, const Cut& cut);

}  // namespace zero::detail
