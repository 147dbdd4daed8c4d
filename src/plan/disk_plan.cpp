#include "plan/disk_plan.h"

#include <algorithm>
#include <vector>

#include "base/checked.h"
#include "plan/backward_play.h"
#include "plan/disk_pieces.h"
#include "plan/layout.h"
#include "plan/state_bytes.h"
#include "plan/traffic.h"

namespace zero {
namespace {

constexpr int64_t kMomentBytes = 4;  // of optimizer states that are not in 8 bits, and of scales

constexpr int64_t kShardsOnTheirWay = 3;  // to a device, of slabs that are complete (Residency)

/// A state as it lies there: pieces of whole blocks.
struct DiskState {
  int64_t numel = 0, element_bytes = 0, piece_numel = 0;

  int64_t piece_bytes() const {
    return round_up(std::min(numel, piece_numel) * element_bytes, kDiskAlignment);
  }
  int64_t bytes() const {
    const int64_t pieces = numel / piece_numel, rest = numel % piece_numel;
    return pieces * round_up(piece_numel * element_bytes, kDiskAlignment) +
           round_up(rest * element_bytes, kDiskAlignment);
  }
};

int64_t sum_of(const std::vector<DiskState>& states, int64_t (DiskState::*bytes)() const) {
  int64_t sum = 0;
  for (const DiskState& state : states) sum += (state.*bytes)();
  return sum;
}

/// One unit's states on disk.
struct UnitStates {
  std::vector<DiskState> parameter, updated, gradient, own_gradient;  // updated: by the optimizer alone
};

UnitStates states_of(const Plan& plan, const UnitLayout& unit) {
  UnitStates states;
  const int64_t piece = plan.offload.piece_numel, numel = unit.shard_numel;
  if (numel == 0) return states;
  const auto state = [&](int64_t bytes) { return DiskState{numel, bytes, piece}; };
  if (unit.tiers.parameter == Tier::Disk) states.parameter.push_back(state(itemsize(unit.dtype)));
  if (!unit.trainable) return states;
  const int64_t master = master_bytes_of(plan.state, unit.dtype);
  if (unit.tiers.master == Tier::Disk && master > 0) states.updated.push_back(state(master));
  if (unit.tiers.optimizer == Tier::Disk && plan.state.block_bytes > 0) {
    const int64_t each = plan.state.block_numel;
    for (int64_t i = 0; i < plan.state.optimizer_bytes; ++i) {
      states.updated.push_back(state(1));
      states.updated.push_back({(numel + each - 1) / each, kMomentBytes, piece / each});
    }
  } else if (unit.tiers.optimizer == Tier::Disk) {
    for (int64_t bytes = 0; bytes < plan.state.optimizer_bytes; bytes += kMomentBytes)
      states.updated.push_back(state(kMomentBytes));
  }
  if (unit.tiers.gradient != Tier::Disk) return states;
  if (!plan.keeps_gradient_off_disk(unit)) states.gradient.push_back(state(plan.state.gradient_bytes));
  if (plan.keeps_own_sums())
    states.own_gradient.push_back({unit.padded_numel, plan.state.gradient_bytes, piece});
  return states;
}

void add_moved(const Plan& plan, const UnitLayout& unit, int64_t gathers, RankPlan& rank) {
  const UnitStates states = states_of(plan, unit);
  const auto bytes = [](const std::vector<DiskState>& of) { return sum_of(of, &DiskState::bytes); };
  const int64_t parameter = bytes(states.parameter), sum = bytes(states.gradient);
  const int64_t micro_batches = plan.accumulation_steps;
  const int64_t sums = plan.keeps_own_sums() ? 1 : micro_batches;
  const int64_t of_replicas = plan.shard_ranks > 1 && plan.replica_ranks > 1 ? 1 : 0;
  const bool is_used_up = plan.uses_up_gradient(unit);
  const int64_t norm_and_step = is_used_up ? 0 : 2, last = is_used_up ? 0 : 1;
  const int64_t swept = unit.trainable ? parameter + bytes(states.updated) : 0;
  rank.step_read_bytes += swept + gathers * parameter + (sums - 1 + of_replicas + norm_and_step) * sum +
                          (micro_batches - 1) * bytes(states.own_gradient);
  rank.step_written_bytes +=
      swept + (sums - 1 + last + of_replicas) * sum + micro_batches * bytes(states.own_gradient);
}

}  // namespace

std::vector<int64_t> passing_sums_of(const Plan& plan) {
  std::vector<int64_t> passing;
  for (const UnitLayout& unit : plan.units) {
    const UnitStates states = states_of(plan, unit);
    const bool is_used_up = unit.trainable && plan.uses_up_gradient(unit);
    passing.push_back(sum_of(states.own_gradient, &DiskState::bytes) +
                      (is_used_up ? unit.shard_numel * plan.state.gradient_bytes
                                  : sum_of(states.gradient, &DiskState::bytes)));
  }
  return passing;
}

int64_t sums_in_memory(const Plan& plan, const std::vector<int64_t>& bytes,
                       const std::vector<int64_t>& numels) {
  int64_t piece = 0, most = 0;
  for (const UnitLayout& unit : plan.units)
    if (unit.trainable)
      piece = std::max(piece, bucket_piece_numel(unit, plan.shard_ranks, plan.reduce_bucket_numel));
  for (size_t first = 0; first < bytes.size(); ++first) {
    int64_t sum = 0, between = 0;
    for (size_t last = first; last < bytes.size() && between <= (kBucketsInFlight + 1) * piece; ++last) {
      sum += bytes[last];
      most = std::max(most, sum);
      if (last > first) between += numels[last];
    }
  }
  return most + (bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end()));
}

void add_disk(const Plan& plan, RankPlan& rank) {
  int64_t ring = 0, whole = 0;
  int64_t largest_shard_bytes = 0, largest_slab_bytes = 0;  // of those; of all
  bool reads_parameters = false;
  std::vector<int64_t> sum_numels;  // of trained units
  for (const UnitLayout& unit : plan.units) {
    const UnitStates states = states_of(plan, unit);
    // What is updated in backward has a second place, unless it is updated in place.
    const int64_t places = plan.steps_in_backward(unit) && !plan.updates_in_place() ? 2 : 1;
    const auto bytes = [](const std::vector<DiskState>& of) { return sum_of(of, &DiskState::bytes); };
    rank.file_bytes += places * (bytes(states.parameter) + bytes(states.updated)) + bytes(states.gradient) +
                       bytes(states.own_gradient);
    largest_slab_bytes = std::max(largest_slab_bytes, unit.slab_bytes());
    reads_parameters = reads_parameters || !states.parameter.empty();
    largest_shard_bytes = std::max(largest_shard_bytes, sum_of(states.parameter, &DiskState::bytes));
    if (!unit.trainable) continue;
    const bool is_used_up = plan.uses_up_gradient(unit);
    sum_numels.push_back(unit.shard_numel);
    int64_t pieces = 0, all = 0;
    const auto add_to_sweep = [&](const std::vector<DiskState>& some) {
      pieces += sum_of(some, &DiskState::piece_bytes);
      all += bytes(some);
    };
    add_to_sweep(states.parameter);
    add_to_sweep(states.updated);
    if (!is_used_up) add_to_sweep(states.gradient);
    ring = std::max(ring, pieces);
    whole = std::max(whole, all);
    if (plan.steps_in_backward(unit) && states.parameter.empty())
      rank.ahead_bytes += unit.shard_numel * itemsize(unit.dtype);
  }
  // A whole unit goes through a buffer of a piece of each state.
  rank.ring_bytes = plan.state.whole_units ? whole + ring : ring * plan.offload.buffer_count;
  const std::vector<int64_t> sums = passing_sums_of(plan);
  if (!plan.on_cpu) {
    if (reads_parameters)
      rank.staging_bytes += rank.gather_window_bytes / plan.shard_ranks + plan.offload.block_bytes +
                            kShardsOnTheirWay * largest_shard_bytes;
    std::vector<int64_t> trained;
    for (size_t i = 0; i < plan.units.size(); ++i)
      if (plan.units[i].trainable) trained.push_back(sums[i]);
    rank.staging_bytes += sums_in_memory(plan, trained, sum_numels);
    return;
  }
  // One is fetched while another computes; what is sent of it is a copy where others read it.
  rank.staging_bytes += largest_shard_bytes;
  if (plan.placements.parameter == Placement::Shard && plan.buckets_share_memory)
    rank.staging_bytes += largest_slab_bytes / plan.shard_ranks;
  for (const BackwardMoment& moment : played_backward(plan, sums))
    rank.passing_sum_bytes = std::max(rank.passing_sum_bytes, moment.passing_bytes);
}

void add_disk_traffic(Plan& plan) {
  if (plan.rank.file_bytes == 0) return;
  const std::vector<int64_t> gathers = gathers_of_step(plan);
  for (size_t i = 0; i < plan.units.size(); ++i) add_moved(plan, plan.units[i], gathers[i], plan.rank);
}

}  // namespace zero
