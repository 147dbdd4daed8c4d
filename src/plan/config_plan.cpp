// From a configuration to the plan of its model at every stage.
#include <algorithm>
#include <string>

#include "plan/state_bytes.h"
#include "zero/error.h"
#include "zero/model_shape.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

// Moments: see optimizer_state_bytes() of optimizer.h, which knows the optimizers themselves.
int64_t moment_bytes(const OptimizerConfig& optimizer) {
  using enum OptimizerConfig::Type;
  switch (optimizer.type) {
    case Adam:
    case AdamW:
      return optimizer.amsgrad ? 12 : 8;
    case Lion:
      return 4;
    case Sgd:
      return optimizer.momentum > 0 ? 4 : 0;
  }
  fail(ErrorKind::Internal, "plan", "an optimizer without a size");
}

std::string_view name_of(OptimizerConfig::Type type) {
  using enum OptimizerConfig::Type;
  switch (type) {
    case Adam:
      return "Adam";
    case AdamW:
      return "AdamW";
    case Sgd:
      return "SGD";
    case Lion:
      return "Lion";
  }
  return "unknown";
}

PlanOptions options_of(const Config& config, int ranks) {
  require(config.gradient_accumulation_steps >= 1 && config.gradient_accumulation_steps <= 1 << 30 &&
              config.precision.param_dtype && config.precision.grad_accum_dtype,
          ErrorKind::Usage, "plan", "the configuration is not resolved", "call resolve() first");
  PlanOptions options{.ranks = ranks};
  options.shard_group_ranks = config.parallel.shard_group_ranks;
  options.accumulation_steps = static_cast<int>(config.gradient_accumulation_steps);
  options.state = {.gradient_bytes = itemsize(*config.precision.grad_accum_dtype),
                   .bf16_master_bytes = config.residency.split_master ? 2 : 4,
                   .optimizer_bytes = moment_bytes(config.optimizer)};
  options.communication_dtype = config.precision.communication_dtype;
  options.budget_bytes = config.residency.budget_bytes;
  if (config.residency.prefetch_bytes >= 0) options.prefetch_bytes = config.residency.prefetch_bytes;
  return options;
}

// As the engine decides it once the ranks have met.
void share_memory(PlanOptions& options, const Config& config, int ranks, int hosts) {
  using Backend = ParallelConfig::Backend;
  const bool by_memory = config.parallel.backend == Backend::Auto || config.parallel.backend == Backend::Shm;
  const int together =
      options.stage == 0 || options.shard_group_ranks == 0 ? ranks : options.shard_group_ranks;
  options.common_parameters = false;
  if (!by_memory || together == 1 || ranks / hosts % together != 0) return;
  options.reduce_bucket_numel = std::min(config.zero.reduce_bucket_numel, kSharedBucketNumel);
  options.common_parameters = config.residency.share;
}

}  // namespace

int64_t save_copy_bytes(const Plan& plan, bool trainable_only) {
  int64_t bytes = 0;
  for (const UnitLayout& unit : plan.units) {
    if (!unit.trainable && trainable_only) continue;
    const int64_t element =
        unit.trainable ? std::max<int64_t>(4, itemsize(unit.dtype)) + plan.options.state.optimizer_bytes
                       : itemsize(unit.dtype);
    bytes += (unit.shard_numel + plan.replica_ranks - 1) / plan.replica_ranks * element;
  }
  return bytes;
}

ConfigPlan plan_from_config(const Config& config, int ranks, std::optional<int64_t> memory_bytes, int hosts) {
  require(hosts >= 1 && ranks % hosts == 0, ErrorKind::Config, "--hosts",
          "expected a divisor of the " + std::to_string(ranks) + " ranks, got " + std::to_string(hosts));
  const ModuleSpec spec = trained_spec(config);
  PlanOptions options = options_of(config, ranks);
  Dtype dtype = *config.precision.param_dtype;

  ConfigPlan plan;
  plan.model = config.model.type + ", " + std::to_string(config.model.layers) + " layers, width " +
               std::to_string(config.model.width);
  plan.types = std::string(to_string(dtype)) + " parameters, " + std::string(name_of(config.optimizer.type)) +
               ", " + std::string(to_string(*config.precision.grad_accum_dtype)) + " gradients";
  plan.chosen_stage = config.zero.stage;
  plan.hosts = hosts;
  plan.memory_bytes = memory_bytes;
  for (int stage = 0; stage < 4; ++stage) {
    options.stage = stage;
    options.reduce_bucket_numel = config.zero.reduce_bucket_numel;
    share_memory(options, config, ranks, hosts);
    plan.stages[static_cast<size_t>(stage)] =
        make_plan(spec, options, {.group_numel = config.residency.group_numel}, &dtype);
  }
  plan.activations =
      activation_bytes(shape_of(config), config.train_micro_batch_size, config.data.sequence_length, dtype);
  const CheckpointConfig& saving = config.checkpoint;
  for (size_t stage = 0; saving.async && saving.interval_steps > 0 && stage < 4; ++stage)
    plan.save_copy_bytes[stage] = save_copy_bytes(plan.stages[stage], saving.trainable_only);
  for (const UnitLayout& unit : plan.stages[0].units) plan.parameters += unit.numel;
  plan.count =
      plan_from_count(
          {.parameters = plan.parameters,
           .ranks = plan.stages[3].shard_ranks,
           .parameter_bytes = itemsize(dtype),
           .gradient_bytes = options.state.gradient_bytes,
           .optimizer_bytes = options.state.optimizer_bytes + (itemsize(dtype) < 4 ? 4 : 0),
           .engine_gradient_bytes = options.state.gradient_bytes,
           .engine_optimizer_bytes = options.state.optimizer_bytes + master_bytes_of(options.state, dtype),
           .accumulation_steps = options.accumulation_steps,
           .memory_bytes = memory_bytes})
          .stages;
  return plan;
}

}  // namespace zero
