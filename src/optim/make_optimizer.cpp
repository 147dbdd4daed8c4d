// The one door to all optimizers: checks everything, then chooses.
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

std::unique_ptr<ShardOptimizer> make_rule_optimizer(RuleSpec spec, std::vector<ParameterGroup> groups,
                                                    std::vector<OptimizerShard> shards, int parameters) {
  bool on_cpu = true;
  for (const auto& shard : shards) on_cpu = on_cpu && shard.master.is_cpu();
  const Execution execution = on_cpu ? Execution::kernels : Execution::operators;
  return std::make_unique<RuleOptimizer>(spec, std::move(groups), std::move(shards), parameters, execution);
}

}  // namespace

bool split_masters_work(const OptimizerSpec& spec) { return !std::holds_alternative<TorchOptimizer>(spec); }

std::unique_ptr<ShardOptimizer> make_shard_optimizer(const OptimizerSpec& spec,
                                                     std::vector<ParameterGroup> groups,
                                                     std::vector<OptimizerShard> shards, int parameters) {
  validate(spec);
  validate(groups);
  require(parameters >= 0, ErrorKind::Usage, "make_shard_optimizer",
          "parameters is " + std::to_string(parameters) + ", expected >= 0");
  for (size_t i = 0; i < shards.size(); ++i) {
    check_shard(shards[i], i, parameters);
    check_groups_of(shards[i], groups.size());
    require(split_masters_work(spec) || !is_remainder(shards[i].master), ErrorKind::Unsupported,
            "optimizer shard " + std::to_string(i), "a torch optimizer cannot update a split master",
            "give it fp32 masters");
  }
  if (const auto* torch = std::get_if<TorchOptimizer>(&spec)) {
    return std::make_unique<TorchShardOptimizer>(*torch, std::move(groups), std::move(shards), parameters);
  }
  return std::visit(
      [&](const auto& rule) -> std::unique_ptr<ShardOptimizer> {
        if constexpr (std::is_same_v<std::decay_t<decltype(rule)>, TorchOptimizer>) {
          fail(ErrorKind::Internal, "make_shard_optimizer", "unreachable");
        } else {
          return make_rule_optimizer(rule, std::move(groups), std::move(shards), parameters);
        }
      },
      spec);
}

}  // namespace zero
