#include "zero/plan.h"

#include <algorithm>
#include <string>

#include "plan/state_bytes.h"
#include "plan/traffic.h"
#include "zero/error.h"

namespace zero {
namespace {

void check_range(int64_t value, int64_t least, int64_t most, const char* name) {
  if (value >= least && value <= most) return;
  bool open = most == std::numeric_limits<int64_t>::max();
  fail(ErrorKind::Config, name,
       "expected " + std::to_string(least) + (open ? " or more" : " to " + std::to_string(most)) + ", got " +
           std::to_string(value));
}

void check(const PlanOptions& options) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  check_range(options.ranks, 1, std::numeric_limits<int>::max(), "ranks");
  check_range(options.shard_group_ranks, 0, std::numeric_limits<int>::max(), "shard_group_ranks");
  check_range(options.accumulation_steps, 1, std::numeric_limits<int>::max(), "accumulation_steps");
  check_range(options.state.gradient_bytes, 1, 8, "gradient_bytes");
  check_range(options.state.master_bytes, 0, 8, "master_bytes");
  check_range(options.state.bf16_master_bytes, 0, 8, "bf16_master_bytes");
  check_range(options.state.optimizer_bytes, 0, 64, "optimizer_bytes");
  check_range(options.budget_bytes, -1, kAny, "budget_bytes");
  check_range(options.prefetch_bytes, 0, kAny, "prefetch_bytes");
  check_range(options.reduce_bucket_numel, 1, kAny, "reduce_bucket_numel");
  int group = options.shard_group_ranks;
  require(group == 0 || options.ranks % group == 0, ErrorKind::Config, "shard_group_ranks",
          std::to_string(group) + " ranks in a shard group do not divide " + std::to_string(options.ranks) +
              " ranks",
          "choose a divisor of the ranks, or 0 for all of them");
}

int64_t all_slab_bytes(const std::vector<UnitLayout>& units) {
  int64_t sum = 0;
  for (const UnitLayout& unit : units) sum += unit.slab_bytes();
  return sum;
}

Dtype resolve_wire(const Plan& plan) {
  if (plan.options.communication_dtype) return *plan.options.communication_dtype;
  const bool partial_sums =
      plan.placements.gradient == Placement::Partial && plan.options.accumulation_steps > 1;
  const bool sums_of_shards = plan.shard_ranks > 1 && plan.replica_ranks > 1;
  if (partial_sums || sums_of_shards) return Dtype::f32;
  std::optional<Dtype> common;
  for (const UnitLayout& unit : plan.units) {
    if (!unit.trainable) continue;
    if (common && *common != unit.dtype) return Dtype::f32;
    common = unit.dtype;
  }
  return common.value_or(Dtype::f32);
}

int64_t resolve_budget(const Plan& plan) {
  if (plan.placements.parameter != Placement::Shard) return all_slab_bytes(plan.units);
  if (plan.options.budget_bytes >= 0) return plan.options.budget_bytes;
  int64_t largest = 0, second = 0;
  for (const UnitLayout& unit : plan.units) {
    second = std::max(second, std::min(largest, unit.slab_bytes()));
    largest = std::max(largest, unit.slab_bytes());
  }
  return largest + second;
}

int64_t gather_window(const Plan& plan) {
  // A rank alone owns its slabs: there is nothing to gather.
  if (plan.placements.parameter != Placement::Shard || plan.shard_ranks == 1) return 0;
  int64_t largest = 0;
  for (const UnitLayout& unit : plan.units) largest = std::max(largest, unit.slab_bytes());
  return std::min(std::max(plan.budget_bytes, largest), all_slab_bytes(plan.units));
}

int64_t bucket_bytes(const Plan& plan) {
  const PlanOptions& options = plan.options;
  int64_t piece = 0, largest_shard = 0;
  for (const UnitLayout& unit : plan.units) {
    if (!unit.trainable) continue;
    piece = std::max(piece, bucket_piece_numel(unit, plan.shard_ranks, options.reduce_bucket_numel));
    largest_shard = std::max(largest_shard, unit.shard_numel);
  }
  constexpr int64_t kSumBytes = 4;
  // What is sent and what is received, in the type of the wire, and the sum.
  auto in_flight = [&](int64_t part, int64_t ranks) {
    return kBucketsInFlight * (2 * part * ranks * itemsize(plan.communication_dtype) + part * kSumBytes);
  };
  int64_t bytes = plan.shard_ranks > 1 ? in_flight(piece, plan.shard_ranks) : 0;
  if (plan.replica_ranks > 1) {
    const int64_t whole = std::min(options.reduce_bucket_numel, largest_shard);
    const int64_t part = (whole + plan.replica_ranks - 1) / plan.replica_ranks;
    bytes += in_flight(part, plan.replica_ranks) + part * plan.replica_ranks * kSumBytes;
  }
  return bytes;
}

RankPlan bytes_of(const Plan& plan) {
  const StateBytes& state = plan.options.state;
  bool whole_gradient = plan.placements.gradient == Placement::Partial && plan.options.accumulation_steps > 1;
  RankPlan rank{.stage = plan.options.stage};
  for (const UnitLayout& unit : plan.units) {
    bool sharded = plan.placements.parameter != Placement::Replicate;
    rank.parameter_bytes += sharded ? unit.shard_numel * itemsize(unit.dtype) : unit.slab_bytes();
    if (plan.placements.parameter == Placement::Common)
      rank.common_bytes += unit.slab_bytes() - unit.shard_numel * itemsize(unit.dtype);
    if (!unit.trainable) continue;
    for (const UnitParameter& parameter : unit.parameters)
      rank.largest_gradient_bytes =
          std::max(rank.largest_gradient_bytes, parameter.numel * itemsize(unit.dtype));
    rank.gradient_bytes += (whole_gradient ? unit.padded_numel : unit.shard_numel) * state.gradient_bytes;
    rank.master_bytes += unit.shard_numel * master_bytes_of(state, unit.dtype);
    rank.optimizer_bytes += unit.shard_numel * state.optimizer_bytes;
  }
  rank.gather_window_bytes = gather_window(plan);
  rank.bucket_bytes = bucket_bytes(plan);
  return rank;
}

}  // namespace

int64_t bucket_piece_numel(const UnitLayout& unit, int shard_ranks, int64_t reduce_bucket_numel) {
  return std::clamp(reduce_bucket_numel / shard_ranks, std::min<int64_t>(1, unit.shard_numel),
                    unit.shard_numel);
}

Plan make_plan(const ModuleSpec& root, const PlanOptions& options, const LayoutOptions& layout,
               const Dtype* dtype_of_floats) {
  Plan plan{.options = options, .placements = placements_for(options.stage, options.common_parameters)};
  check(options);
  bool sharded = plan.placements.optimizer == Placement::Shard;
  int group = options.shard_group_ranks == 0 ? options.ranks : options.shard_group_ranks;
  plan.shard_ranks = sharded ? group : 1;
  plan.replica_ranks = options.ranks / plan.shard_ranks;
  LayoutOptions unit_options = layout;
  unit_options.shard_ranks = plan.shard_ranks;
  plan.units = make_layout(root, unit_options, dtype_of_floats);
  plan.communication_dtype = resolve_wire(plan);
  plan.budget_bytes = resolve_budget(plan);
  plan.rank = bytes_of(plan);
  add_traffic(plan);
  return plan;
}

}  // namespace zero
