#include "sharding/counted_elements.h"

#include <algorithm>

namespace zero::detail {

void share_out_among_replicas(std::span<OptimizerShard> shards, const Group& replicas,
                              std::span<const int64_t> cut_numel) {
  const int rank = replicas.rank();
  for (size_t i = 0; i < shards.size(); ++i)
    for (ShardSegment& segment : shards[i].segments) {
      if (!cut_numel.empty()) {
        const int64_t begin = rank * cut_numel[i], end = begin + cut_numel[i];
        segment.counted_begin = std::clamp(begin, segment.begin, segment.end);
        segment.counted_end = std::clamp(end, segment.begin, segment.end);
      } else if (rank > 0) {
        segment.counted_end = segment.counted_begin;
      }
    }
}

std::vector<OptimizerShard> leave_out_copies(std::span<OptimizerShard> shards, const AxesAgreement& axes) {
  std::vector<OptimizerShard> left_out(shards.begin(), shards.end());
  for (size_t i = 0; i < shards.size(); ++i)
    for (size_t j = 0; j < shards[i].segments.size(); ++j) {
      ShardSegment& here = shards[i].segments[j];
      ShardSegment& there = left_out[i].segments[j];
      ShardSegment& none = axes.is_copy(here.parameter) ? here : there;
      none.counted_end = none.counted_begin;
    }
  return left_out;
}

}  // namespace zero::detail
