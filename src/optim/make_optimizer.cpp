// The one door to all optimizers: checks everything, then chooses.
#include <algorithm>

#include "optim/fused_operators.h"
#include "optim/host_tier.h"
#include "optim/rule_optimizer.h"
#include "optim/shards.h"
#include "optim/split_master.h"
#include "optim/torch_optimizer.h"
#include "zero/error.h"

namespace zero {
namespace {

void check_groups_of(const OptimizerShard& shard, size_t groups) {
  for (const auto& segment : shard.segments) {
    require(segment.group >= 0 && static_cast<size_t>(segment.group) <= groups, ErrorKind::Usage,
            segment.name,
            "is in parameter group " + std::to_string(segment.group) + " of " + std::to_string(groups));
  }
}

// Where a shard's values are, or its gradient: the host may keep either beside a device.
c10::Device device_of(StateStore& states, const OptimizerShard& shard) {
  if (states.host() != nullptr) return states.host()->link.device();
  const auto lease =
      states.lend(shard.unit, {kMasterState, kGradientState, kParameterState}, StateStore::Use::Shape);
  for (const std::string_view kind : {kMasterState, kGradientState, kParameterState})
    if (lease[kind].defined() && !lease[kind].is_cpu()) return lease[kind].device();
  return c10::kCPU;
}

// The fastest way that all shards' devices have.
Execution execution_for(StateStore& states, const std::vector<OptimizerShard>& shards) {
  auto result = Execution::kernels;
  for (const OptimizerShard& shard : shards) {
    const c10::Device device = device_of(states, shard);
    if (device.is_cpu()) continue;
    if (!fused_operators::exist_for(device)) return Execution::operators;
    result = Execution::fused_operators;
  }
  return result;
}

// Whether the master is an fp32 tensor.
bool is_whole(StateStore& states, const OptimizerShard& shard) {
  const auto shape = states.lend(shard.unit, {kMasterState}, StateStore::Use::Shape);
  return shape[kMasterState].scalar_type() == at::kFloat;
}

}  // namespace

bool split_masters_work(const OptimizerSpec& spec) { return !std::holds_alternative<TorchOptimizer>(spec); }

std::unique_ptr<ShardOptimizer> make_shard_optimizer(const OptimizerSpec& spec,
                                                     std::vector<ParameterGroup> groups, StateStore& states,
                                                     std::vector<OptimizerShard> shards, int parameters,
                                                     uint64_t rounding_seed) {
  validate(spec);
  validate(groups);
  require(parameters >= 0, ErrorKind::Usage, "make_shard_optimizer",
          "parameters is " + std::to_string(parameters) + ", expected >= 0");
  for (size_t i = 0; i < shards.size(); ++i) {
    check_shard(states, shards[i], i, parameters);
    check_groups_of(shards[i], groups.size());
    require(split_masters_work(spec) || is_whole(states, shards[i]), ErrorKind::Unsupported,
            "optimizer shard " + std::to_string(i), "a torch optimizer cannot update a split master, or none",
            "give it fp32 masters");
  }
  if (const auto rule = rule_of(spec)) {
    const Execution execution = execution_for(states, shards);
    return std::make_unique<RuleOptimizer>(*rule, std::move(groups), states, std::move(shards), parameters,
                                           execution, rounding_seed);
  }
  return std::make_unique<TorchShardOptimizer>(std::get<TorchOptimizer>(spec), std::move(groups), states,
                                               std::move(shards), parameters);
}

}  // namespace zero
