// From a configuration to the plan of its model at every stage.
#include <algorithm>
#include <string>

#include "plan/config_options.h"
#include "plan/config_tiers.h"
#include "plan/mesh_places.h"
#include "plan/state_bytes.h"
#include "zero/error.h"
#include "zero/model_shape.h"
#include "zero/plan_report.h"

namespace zero {
int64_t save_copy_bytes(const Plan& plan, bool trainable_only) {
  int64_t bytes = 0;
  for (const UnitLayout& unit : plan.units) {
    if (!unit.trainable && trainable_only) continue;
    const int64_t numel = (unit.shard_numel + plan.replica_ranks - 1) / plan.replica_ranks;
    bytes += numel * (unit.trainable ? std::max<int64_t>(4, itemsize(unit.dtype)) : itemsize(unit.dtype));
    if (unit.trainable) bytes += plan.state.optimizer_bytes_of(numel) + unit.factored_numel * kRuleStateBytes;
  }
  return bytes;
}

namespace {

// Stages that keep all parameters on every rank have no other place for them.
EngineOptions options_at(int stage, EngineOptions options, const Config& config) {
  options.stage = stage;
  const Placements placements = placements_for(stage);
  options.shard_group_ranks =
      placements.optimizer == Placement::Shard ? config.parallel.shard_group_ranks : 0;
  if (placements.parameter != Placement::Shard) options.tiers.parameter = Tier::Device;
  return options;
}

// Of the whole model, of which ranks that share layers hold parts.
int64_t numel_of_model(const UnitLayout& unit) {
  int64_t numel = 0;
  for (const UnitParameter& parameter : unit.parameters)
    numel += Box::whole(parameter.part.global_shape).numel();
  return numel;
}

TensorTraffic tensor_traffic_of_step(const Config& config, Dtype dtype) {
  const TensorTraffic once =
      tensor_traffic(shape_of(config), config.train_micro_batch_size, config.data.sequence_length, dtype,
                     layer_share_of(config), {.blocks = config.model.layers});
  return times(once, config.gradient_accumulation_steps);
}

}  // namespace

ConfigPlan plan_from_config(const Config& config, const ModuleSpec& model, int ranks,
                            std::optional<int64_t> memory_bytes, int hosts, int cuda_devices,
                            const TierMachine& machine) {
  const RankPlaces places = dp_places_of(config, ranks, hosts, cuda_devices);
  const EngineOptions options = options_from_config(config, places.ranks);
  const Dtype dtype = *options.dtype, accumulated = options.accumulation_dtype;
  const OptimizerBytes optimizer = bytes_of_rule(config.optimizer.rule);

  ConfigPlan plan;
  plan.model = config.model.type + ", " + std::to_string(config.model.layers) + " layers, width " +
               std::to_string(config.model.width);
  plan.types = std::string(to_string(dtype)) + " parameters, " +
               std::string(rule_name(config.optimizer.rule)) + ", " + std::string(to_string(accumulated)) +
               " gradients";
  plan.chosen_stage = config.zero.stage;
  plan.hosts = hosts;
  plan.on_cuda = !places.on_cpu;
  plan.communication = config.parallel.communication;
  plan.memory_bytes = memory_bytes;
  for (int stage = 0; stage < kStages; ++stage)
    plan.stages[stage] = make_plan(model, options_at(stage, options, config), places, optimizer);
  plan.machine = machine;
  plan.tiers = choose_config_tiers(config, model, options, places, machine);
  if (plan.tiers) plan.stages[plan.chosen_stage] = plan.tiers->plan;
  plan.activations =
      activation_bytes(shape_of(config), config.train_micro_batch_size, config.data.sequence_length, dtype,
                       config.recompute, layer_share_of(config));
  plan.layers = layer_share_of(config);
  plan.tensor_traffic = tensor_traffic_of_step(config, dtype);
  const CheckpointConfig& saving = config.checkpoint;
  const auto is_on_disk = [&](size_t stage) {  // then nothing is copied
    return plan.stages[stage].rank.tier_bytes[static_cast<size_t>(Tier::Disk)] > 0;
  };
  for (size_t stage = 0; saving.async && saving.interval_steps > 0 && stage < kStages; ++stage)
    if (!is_on_disk(stage))
      plan.save_copy_bytes[stage] = save_copy_bytes(plan.stages[stage], saving.trainable_only);
  for (const UnitLayout& unit : plan.stages[0].units) {
    plan.parameters += numel_of_model(unit);
    plan.parameters_of_rank += unit.numel;
  }
  const StateBytes& state = plan.stages[0].state;
  plan.count =
      plan_from_count({.parameters = plan.parameters_of_rank,
                       .ranks = plan.stages[kStages - 1].shard_ranks,
                       .parameter_bytes = itemsize(dtype),
                       .gradient_bytes = state.gradient_bytes,
                       .optimizer_bytes = state.optimizer_bytes + (itemsize(dtype) < 4 ? 4 : 0),
                       .engine_gradient_bytes = state.gradient_bytes,
                       .engine_optimizer_bytes = state.optimizer_bytes + master_bytes_of(state, dtype),
                       .accumulation_steps = options.accumulation_steps,
                       .memory_bytes = memory_bytes})
          .stages;
  return plan;
}

}  // namespace zero
