#include "tensor/cut.h"

#include <ATen/ops/cat.h>

#include <algorithm>

namespace zero::detail {

int64_t Cut::global_size() const {
  int64_t size = 0;
  for (const Block& block : blocks) size += block.size;
  return size;
}

bool Cut::same_blocks(const Cut& other, int ranks) const {
  const auto same = [ranks](const Block& a, const Block& b) {
    if (a == b) return true;
    if (a.size != b.size) return false;
    for (int rank = 1; rank < ranks; ++rank)
      if (part_begin(a, {rank, ranks}) != part_begin(b, {rank, ranks})) return false;
    return true;
  };
  return std::equal(blocks.begin(), blocks.end(), other.blocks.begin(), other.blocks.end(), same);
}

std::vector<std::pair<int64_t, int64_t>> pieces_of(const Cut& cut, Place at) {
  std::vector<std::pair<int64_t, int64_t>> pieces;
  int64_t begin = 0;
  for (const Block& block : cut.blocks) {
    pieces.emplace_back(begin + part_begin(block, at), part_size(block, at));
    begin += block.size;
  }
  return pieces;
}

int64_t local_size(const Cut& cut, Place at) {
  int64_t size = 0;
  for (const Block& block : cut.blocks) size += part_size(block, at);
  return size;
}

int64_t largest_local_size(const Cut& cut, int ranks) {
  int64_t largest = 0;
  for (int rank = 0; rank < ranks; ++rank) largest = std::max(largest, local_size(cut, {rank, ranks}));
  return largest;
}

at::Tensor part_of(const at::Tensor& whole, const Cut& cut, Place at) {
  std::vector<at::Tensor> parts;
  for (const auto& [begin, size] : pieces_of(cut, at)) parts.push_back(whole.narrow(cut.dim, begin, size));
  return parts.size() == 1 ? parts.front() : at::cat(parts, cut.dim);
}

at::Tensor joined(const std::vector<at::Tensor>& parts, const Cut& cut) {
  const int ranks = static_cast<int>(parts.size());
  std::vector<int64_t> begins(parts.size(), 0);
  std::vector<at::Tensor> pieces;
  for (const Block& block : cut.blocks)
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t size = part_size(block, {rank, ranks});
      pieces.push_back(parts[rank].narrow(cut.dim, begins[rank], size));
      begins[rank] += size;
    }
  return at::cat(pieces, cut.dim);
}

}  // namespace zero::detail
