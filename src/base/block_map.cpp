#include "base/block_map.h"

#include <algorithm>
#include <string>

#include "base/checked.h"
#include "zero/error.h"

namespace zero::detail {

BlockMap::BlockMap(size_t bytes) {
  if (bytes >= kGrain) free_[0] = bytes / kGrain * kGrain;
}

std::optional<size_t> BlockMap::take(size_t bytes, size_t alignment, size_t end) {
  const size_t wanted = round_up(std::max<size_t>(bytes, 1), kGrain);
  auto chosen = free_.end();
  for (auto gap = free_.begin(); gap != free_.end(); ++gap) {
    const auto [begin, size] = *gap;
    if (begin >= end) break;
    if (round_up(begin, alignment) + wanted > std::min(begin + size, end)) continue;
    if (chosen == free_.end() || size < chosen->second) chosen = gap;
    if (wanted < kLarge) break;
  }
  if (chosen == free_.end()) return std::nullopt;
  const auto [begin, size] = *chosen;
  const size_t offset = round_up(begin, alignment);
  free_.erase(chosen);
  if (offset > begin) free_[begin] = offset - begin;
  if (begin + size > offset + wanted) free_[offset + wanted] = begin + size - offset - wanted;
  taken_[offset] = wanted;
  return offset;
}

void BlockMap::give(size_t offset) {
  auto taken = taken_.find(offset);
  require(taken != taken_.end(), ErrorKind::Internal, "shared memory",
          "block " + std::to_string(offset) + " is given back but not taken");
  auto block = free_.emplace(offset, taken->second).first;
  taken_.erase(taken);
  if (auto next = std::next(block); next != free_.end() && block->first + block->second == next->first) {
    block->second += next->second;
    free_.erase(next);
  }
  if (block == free_.begin()) return;
  if (auto before = std::prev(block); before->first + before->second == block->first) {
    before->second += block->second;
    free_.erase(block);
  }
}

}  // namespace zero::detail
