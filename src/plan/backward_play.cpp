#include "plan/backward_play.h"

#include <algorithm>
#include <deque>
#include <set>

#include "base/checked.h"
#include "plan/layout.h"

namespace zero {
namespace {

// As optim/passing_memory.h lays sums out, and compute/lent_pages.h gives them memory.
constexpr int64_t kSumAlignmentNumel = 64, kPageBytes = int64_t{2} << 20;
// As many full buckets of one unit as say what any number does.
constexpr int64_t kRepeats = kBucketsInFlight + 2;
// Units that wait for their update until the next one is final (sharding/step_ahead.h); where buckets are
// settled before they are packed, one more.
constexpr size_t kKeptForUpdate = 2, kWrittenBehind = 1;

std::vector<int> in_backward(const Plan& plan) {
  std::vector<int> order;
  for (int i = 0; i < std::ssize(plan.units); ++i)
    if (plan.units[static_cast<size_t>(i)].trainable) order.push_back(i);
  std::reverse(order.begin(), order.end());
  return order;
}

const UnitLayout& unit_of(const Plan& plan, int unit) { return plan.units[static_cast<size_t>(unit)]; }

// Of all ranks where they are added up on each rank first.
int64_t sum_numel(const Plan& plan, const UnitLayout& unit) {
  const bool whole = plan.placements.gradient == Placement::Partial && plan.accumulation_steps > 1;
  return whole ? unit.padded_numel : unit.shard_numel;
}

bool is_kept(const UnitLayout& unit) { return unit.trainable && unit.tiers.gradient != Tier::Disk; }

/// Where each kept sum begins in the range of all of them, bytes.
struct SumRange {
  std::vector<int64_t> begins;  // by unit
  int64_t bytes = 0;

  explicit SumRange(const Plan& plan) : begins(plan.units.size()) {
    for (size_t i = 0; i < plan.units.size(); ++i) {
      begins[i] = bytes;
      if (is_kept(plan.units[i]))
        bytes += round_up(sum_numel(plan, plan.units[i]), kSumAlignmentNumel) * plan.state.gradient_bytes;
    }
  }
  int64_t page_bytes_from(size_t unit) const {
    return round_up(bytes, kPageBytes) - begins[unit] / kPageBytes * kPageBytes;
  }
};

int64_t bytes_of(const std::set<int>& units, const std::vector<int64_t>& passing) {
  int64_t bytes = 0;
  for (const int unit : units) bytes += passing[static_cast<size_t>(unit)];
  return bytes;
}

// Of an embedding that is the head, too: from the one's gradient to the other's, which is added to it. Such
// is taken to be the largest parameter where the first unit alone has one of its size.
int64_t tied_gradient_bytes(const Plan& plan) {
  int64_t first = 0, others = 0, bytes = 0;
  for (size_t i = 0; i < plan.units.size(); ++i)
    for (const UnitParameter& parameter : plan.units[i].parameters) {
      int64_t& most = i == 0 ? first : others;
      most = std::max(most, parameter.numel);
      if (i == 0) bytes = std::max(bytes, parameter.numel * itemsize(plan.units[i].dtype));
    }
  return first > others && plan.units.front().trainable ? bytes : 0;
}

/// The most that sums take while each unit is sent, by unit: those in buckets, or on their way between
/// replicas, and those that have left them last.
std::vector<int64_t> passing_while_sent(const Plan& plan, const std::vector<int64_t>& passing) {
  std::vector<int64_t> most(plan.units.size());
  const std::vector<int> order = in_backward(plan);
  std::deque<std::set<int>> in_flight;
  std::deque<int> left;
  const auto see = [&](int unit) {
    std::set<int> here(left.begin(), left.end());
    for (const auto& bucket : in_flight) here.insert(bucket.begin(), bucket.end());
    auto& known = most[static_cast<size_t>(unit)];
    known = std::max(known, bytes_of(here, passing));
  };
  // Without buckets a unit's sum is there at once; between replicas two are on their way.
  std::vector<std::vector<int>> buckets = played_buckets(plan);
  const size_t places = !buckets.empty() ? kBucketsInFlight : plan.replica_ranks > 1 ? 2 : 1;
  const size_t kept = places == 1 ? 1 : kKeptForUpdate;
  const auto settle = [&] {
    for (const int unit : in_flight.front()) {
      const bool goes_on = std::any_of(in_flight.begin() + 1, in_flight.end(),
                                       [&](const auto& bucket) { return bucket.contains(unit); });
      if (goes_on || passing[static_cast<size_t>(unit)] == 0) continue;
      left.push_back(unit);
      if (left.size() > (plan.uses_up_gradient(unit_of(plan, unit)) ? kept : kWrittenBehind))
        left.pop_front();
    }
    in_flight.pop_front();
  };
  if (buckets.empty())
    for (const int unit : order) buckets.push_back({unit});
  for (const std::vector<int>& bucket : buckets) {
    if (in_flight.size() == places) settle();
    in_flight.emplace_back(bucket.begin(), bucket.end());
    see(bucket.back());
  }
  return most;
}

}  // namespace

std::vector<std::vector<int>> played_buckets(const Plan& plan) {
  std::vector<std::vector<int>> buckets;
  if (plan.shard_ranks == 1 && !plan.sums_replicas_in_buckets) return buckets;
  const std::vector<int> order = in_backward(plan);
  int64_t room = 0, filled = 0;
  for (const int unit : order)
    room =
        std::max(room, bucket_piece_numel(unit_of(plan, unit), plan.shard_ranks, plan.reduce_bucket_numel));
  std::vector<int> filling;
  const auto flush = [&] {
    if (!filling.empty()) buckets.push_back(std::move(filling));
    filling.clear();
    filled = 0;
  };
  for (const int unit : order) {
    // Of a very large unit full buckets repeat: a few stand for all.
    const int64_t shard = unit_of(plan, unit).shard_numel, some = kRepeats * std::max<int64_t>(room, 1);
    for (int64_t left = shard > some ? some + shard % room : shard; left > 0;) {
      const int64_t numel = std::min(room, left);
      if (filled + numel > room) flush();
      if (filling.empty() || filling.back() != unit) filling.push_back(unit);
      filled += numel;
      left -= numel;
    }
    if (filled == room) flush();
  }
  flush();
  return buckets;
}

int64_t gradient_page_bytes(const Plan& plan) { return round_up(SumRange(plan).bytes, kPageBytes); }

std::vector<BackwardMoment> played_backward(const Plan& plan, const std::vector<int64_t>& passing) {
  const SumRange range(plan);
  const std::vector<int64_t> while_sent = passing_while_sent(plan, passing);
  const int64_t tied_bytes = tied_gradient_bytes(plan);
  // Gathers keep ranks together.
  const bool reads_own = plan.shard_ranks > 1 && plan.placements.parameter != Placement::Shard &&
                         plan.buckets_share_memory && !plan.keeps_own_sums() &&
                         plan.accumulation_dtype == Dtype::f32 && plan.gradient_predivide_factor == 1;
  std::vector<BackwardMoment> moments;
  int64_t ahead_bytes = 0, before_bytes = 0;
  for (const int index : in_backward(plan)) {
    const UnitLayout& unit = unit_of(plan, index);
    const int64_t own_bytes = unit.numel * itemsize(unit.dtype);
    if (plan.steps_in_backward(unit) && unit.tiers.parameter != Tier::Disk)
      ahead_bytes += unit.shard_numel * itemsize(unit.dtype);
    moments.push_back({.unit = index,
                       .sum_bytes = range.page_bytes_from(static_cast<size_t>(index)),
                       .passing_bytes = while_sent[static_cast<size_t>(index)],
                       .pending_bytes = own_bytes + before_bytes + (index > 0 ? tied_bytes : 0),
                       .ahead_bytes = ahead_bytes});
    // Where another rank is late, the sum with what this one has of it is still to be made: about every other
    // time.
    if (reads_own) before_bytes = own_bytes / 2;
  }
  return moments;
}

}  // namespace zero
