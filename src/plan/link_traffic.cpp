#include "plan/link_traffic.h"

#include "plan/state_bytes.h"
#include "plan/traffic.h"

namespace zero {
namespace {

// Sums of gradients: a part of them comes for every micro-batch but the first, and all go after each.
LinkBytes of_sums(const Plan& plan, const UnitLayout& unit) {
  const int64_t micro_batches = plan.accumulation_steps;
  const int64_t of_shard = unit.shard_numel * plan.state.gradient_bytes;
  const bool sums_before_sending = plan.placements.gradient == Placement::Partial && micro_batches > 1;
  const int64_t sum = sums_before_sending ? unit.padded_numel * plan.state.gradient_bytes : of_shard;
  LinkBytes bytes{.up = (micro_batches - 1) * sum, .down = micro_batches * sum};
  // What is added up over replicas comes once more.
  if (plan.shard_ranks > 1 && plan.replica_ranks > 1) {
    bytes.up += sum;
    bytes.down += sum;
  }
  return bytes;
}

}  // namespace

LinkBytes link_bytes_of(const Plan& plan, const UnitLayout& unit, int64_t gathers) {
  LinkBytes bytes;
  if (plan.on_cpu) return bytes;
  const int64_t parameter = unit.shard_numel * itemsize(unit.dtype),
                gradient = unit.shard_numel * plan.state.gradient_bytes;
  const bool is_away = plan.is_away(unit);
  if (is_away) bytes.up += gathers * parameter;
  if (!unit.trainable) return bytes;
  const bool gradient_leaves = unit.tiers.gradient != Tier::Device;
  if (gradient_leaves) {
    const LinkBytes sums = of_sums(plan, unit);
    bytes.up += sums.up;
    bytes.down += sums.down;
  }
  if (unit.tiers.optimizer == Tier::Device) {  // the device updates
    if (gradient_leaves) bytes.up += gradient;
    if (is_away) bytes.up += parameter;
    if (is_away) bytes.down += parameter;
    return bytes;
  }
  if (!gradient_leaves) bytes.down += gradient;
  if (is_away) return bytes;
  bytes.up += parameter;
  // Beside a whole master the parameter is written only.
  const bool has_own_master = master_bytes_of(plan.state, unit.dtype) > 0;
  const bool is_read = !has_own_master || (unit.dtype == Dtype::bf16 && plan.split_master());
  if (is_read) bytes.down += parameter;
  return bytes;
}

void add_link_traffic(Plan& plan) {
  if (plan.on_cpu || plan.rank.offloaded_bytes == 0) return;
  const std::vector<int64_t> gathers = gathers_of_step(plan);
  for (size_t i = 0; i < plan.units.size(); ++i) {
    const LinkBytes bytes = link_bytes_of(plan, plan.units[i], gathers[i]);
    plan.rank.step_up_bytes += bytes.up;
    plan.rank.step_down_bytes += bytes.down;
  }
}

}  // namespace zero
