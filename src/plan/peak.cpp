#include "plan/peak.h"

#include <algorithm>
#include <vector>

#include "plan/backward_play.h"
#include "plan/disk_plan.h"

namespace zero {
namespace {

// Of a unit's activations: as its elements, but that the first unit's parameters, an embedding, keep none,
// and that a head is no larger than a block.
std::vector<double> shares_of_activations(const Plan& plan) {
  std::vector<double> shares;
  for (const UnitLayout& unit : plan.units) shares.push_back(static_cast<double>(unit.numel));
  if (shares.empty()) return shares;
  std::vector<double> sorted = shares;
  std::sort(sorted.begin(), sorted.end());
  for (double& share : shares) share = std::min(share, sorted[sorted.size() / 2]);
  if (shares.size() > 1) shares.front() = 0;
  double all = 0;
  for (const double share : shares) all += share;
  for (double& share : shares) share = all > 0 ? share / all : 0;
  return shares;
}

// Shards in memory that ranks have apart are copied to where others read them, one while it is gathered.
int64_t private_copy_of(const Plan& plan) {
  if (plan.placements.parameter == Placement::Common || !plan.buckets_share_memory) return 0;
  int64_t largest = 0;
  for (const UnitLayout& unit : plan.units)
    if (!plan.is_away(unit)) largest = std::max(largest, unit.slab_bytes() / plan.shard_ranks);
  return largest;
}

// Beside a device: at one end of backward, or at the other.
PlannedPeak peak_on_device(const Plan& plan, const ActivationBytes& activations) {
  const RankPlan& rank = plan.rank;
  const int64_t of_backward =
      rank.gradient_memory_bytes + rank.largest_gradient_bytes + rank.ahead_bytes + rank.passing_sum_bytes;
  const int64_t sums_so_far = plan.accumulation_steps > 1 ? rank.gradient_memory_bytes : 0;
  const int64_t always = rank.total_bytes() - of_backward;
  return {
      .begin_bytes = always + sums_so_far + activations.kept + std::max(activations.loss, activations.again),
      .later_bytes = always + of_backward};
}

}  // namespace

PlannedPeak planned_peak(const Plan& plan, const ActivationBytes& activations) {
  if (!plan.on_cpu || plan.units.empty()) return peak_on_device(plan, activations);
  const RankPlan& rank = plan.rank;
  // There all the time; slabs are complete when backward begins.
  const int64_t always = rank.total_bytes() - rank.gradient_memory_bytes - rank.largest_gradient_bytes -
                         rank.ahead_bytes - rank.passing_sum_bytes - rank.staging_bytes;
  const int64_t sums = gradient_page_bytes(plan);
  const bool has_sums = plan.accumulation_steps > 1;
  const std::vector<int64_t> passing = passing_sums_of(plan);
  // Of an earlier micro-batch the last sum's memory is there until the next one is written.
  const auto written = std::find_if(passing.begin(), passing.end(), [](int64_t bytes) { return bytes > 0; });
  const int64_t behind = has_sums && written != passing.end() ? *written : 0;
  const int64_t begin = always + (has_sums ? sums + behind : 0) + activations.kept +
                        std::max(activations.loss, activations.again);
  int64_t most = 0;
  // The norm reads what is on disk a unit at a time.
  int64_t read_again = 0;
  for (size_t i = 0; i < passing.size(); ++i)
    if (!plan.uses_up_gradient(plan.units[i])) read_again = std::max(read_again, passing[i]);
  if (read_again > 0) most = std::max(most, always + sums + read_again);
  const std::vector<double> shares = shares_of_activations(plan);
  double left = 1;
  for (const BackwardMoment& moment : played_backward(plan, passing)) {
    const bool is_last = moment.unit == 0;
    left = is_last ? 0 : left - shares[static_cast<size_t>(moment.unit)];
    const auto kept = static_cast<int64_t>(std::max(0.0, left) * static_cast<double>(activations.kept));
    // Nothing is left to be fetched when the second unit computes.
    const int64_t beside = (is_last ? 0 : activations.again) + (moment.unit > 1 ? rank.staging_bytes : 0);
    most = std::max(most, always + (has_sums ? sums : moment.sum_bytes) + moment.passing_bytes +
                              moment.pending_bytes + moment.ahead_bytes + kept +
                              std::max(beside, private_copy_of(plan)));
  }
  return {.begin_bytes = begin, .later_bytes = most};
}

int64_t peak_bytes(const Plan& plan, const ActivationBytes& activations) {
  return planned_peak(plan, activations).bytes();
}

}  // namespace zero
