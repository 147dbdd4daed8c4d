#include "pipeline/timeline.h"

#include <algorithm>

namespace zero::pipeline {
Timeline time_of(const Table& table, const StageCosts& costs) {
  check_table(table);
  const Weaver weaver = replay(table, costs);
  Timeline timeline;
  for (int rank = 0; rank < table.shape.ranks; ++rank) {
    const double own = weaver.free_at(rank) - weaver.began_at(rank);
    timeline.duration = std::max(timeline.duration, weaver.free_at(rank));
    timeline.cost = std::max(timeline.cost, own);
    timeline.starts.push_back(weaver.starts(rank));
    timeline.idle.push_back(own - weaver.busy(rank));
    timeline.peak_kept.push_back(weaver.peak_kept(rank));
  }
  timeline.ideal = table.shape.micro_batches * (costs.forward + costs.backward_input + costs.backward_weight);
  timeline.bubble = timeline.cost > 0 ? (timeline.cost - timeline.ideal) / timeline.cost : 0;
  return timeline;
}

}  // namespace zero::pipeline
