#pragma once
// How a tensor is cut over the ranks of a tensor-parallel axis. Arithmetic on sizes, and slices of tensors.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace zero::detail {

/// A rank among those of the axis.
struct Place {
  int rank = 0, ranks = 1;
};

/// Elements that lie along a dim, made of equal parts that are not cut themselves: heads, or single elements.
struct Block {
  int64_t size = 0, parts = 0;
  Block(int64_t elements) : size(elements), parts(elements) {}
  Block(int64_t elements, int64_t equal_parts) : size(elements), parts(equal_parts) {}
  /// Elements of a part.
  int64_t unit() const { return size / parts; }
  bool operator==(const Block&) const = default;
};

/// One dim is cut; `blocks` lie along it one behind the other, and of each every rank holds its part
/// ({c, c, c} for a product that makes queries, keys and values at once).
struct Cut {
  int64_t dim = -1;  // -1: not cut, all ranks hold it whole
  std::vector<Block> blocks;
  std::string origin;  // the parameter it comes from, for errors and the names of collectives

  explicit operator bool() const { return dim >= 0; }
  /// Size of the whole tensor along `dim`.
  int64_t global_size() const;
  /// Whether the same elements of the dim lie on each of so many ranks.
  bool same_blocks(const Cut& other, int ranks) const;
};

/// What of a block a rank holds: numbers of its parts differ by at most one.
inline int64_t part_begin(const Block& block, Place at) {
  return block.size == 0 ? 0 : block.parts * at.rank / at.ranks * block.unit();
}
inline int64_t part_size(const Block& block, Place at) {
  return part_begin(block, {at.rank + 1, at.ranks}) - part_begin(block, at);
}

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
