#include "plan/config_options.h"

#include <algorithm>
#include <limits>
#include <string>

#include "zero/error.h"

namespace zero {
namespace {

Dtype trained_type(const Config& config, const char* key, Dtype dtype) {
  require(dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16, ErrorKind::Unsupported,
          config.place(key),
          std::string(key) + ": the engine trains in fp32, bf16 or fp16, not in " +
              std::string(to_string(dtype)));
  return dtype;
}

// What is left to choose stays where it is until it is chosen (tier_plan.h).
Tier tier_of(TierChoice choice) {
  if (choice == TierChoice::Host) return Tier::Host;
  return choice == TierChoice::Disk ? Tier::Disk : Tier::Device;
}

std::vector<ParameterGroup> groups_of(const Config& config) {
  std::vector<ParameterGroup> groups;
  for (const ParameterGroupConfig& group : config.parameter_groups)
    groups.push_back({.pattern = group.pattern,
                      .lr = group.lr,
                      .lr_scale = group.lr_scale,
                      .weight_decay = group.weight_decay,
                      .elementwise = group.elementwise});
  return groups;
}

}  // namespace

EngineOptions options_from_config(const Config& config, int ranks) {
  const PrecisionConfig& types = config.precision;
  const int64_t accumulation = config.gradient_accumulation_steps;
  require(accumulation >= 1 && accumulation <= std::numeric_limits<int>::max() && types.param_dtype &&
              types.grad_accum_dtype,
          ErrorKind::Usage, "configuration", "it is not resolved", "call resolve() first");
  EngineOptions options;
  options.stage = config.zero.stage;
  options.dtype = trained_type(config, "data_types.param_dtype", *types.param_dtype);
  if (types.fp16) options.loss_scaling = types.loss_scaling;
  if (types.buffer_dtype)
    options.buffer_dtype = trained_type(config, "data_types.buffer_dtype", *types.buffer_dtype);
  options.accumulation_dtype = trained_type(config, "data_types.grad_accum_dtype", *types.grad_accum_dtype);
  if (types.communication_dtype)
    options.communication_dtype = trained_type(config, "communication_data_type", *types.communication_dtype);
  options.stochastic_rounding = types.stochastic_rounding;
  options.rounding_seed = static_cast<uint64_t>(config.run.seed);
  options.fp32_parameters = types.fp32_parameters;
  if (types.autocast) options.autocast = types.autocast_dtype;
  options.accumulation_steps = static_cast<int>(accumulation);
  options.gradient_clipping = config.gradient_clipping;
  options.gradient_predivide_factor = config.prescale_gradients ? ranks : config.gradient_predivide_factor;
  options.groups = groups_of(config);
  options.shard_group_ranks = config.parallel.shard_group_ranks;
  options.broadcast_initial_values = false;  // all ranks draw from the same seed
  options.budget_bytes = config.residency.budget_bytes;
  // -1 is "as much as the budget allows", which bounds what is fetched ahead anyway.
  options.prefetch_bytes = config.residency.prefetch_bytes < 0 ? kAllBytes : config.residency.prefetch_bytes;
  options.reduce_bucket_numel = config.zero.reduce_bucket_numel;
  options.share_parameters = config.residency.share;
  options.split_master = config.residency.split_master;
  options.group_numel = config.residency.group_numel;
  options.cpu_operators = config.cpu_operators;
  options.shard_unit = config.residency.shard_unit;
  options.gathered_ratio = config.residency.gathered_ratio;
  options.persistent_numel = config.zero.persistent_numel;
  options.persistent_total_numel = config.zero.persistent_total_numel;
  options.tiers = {.parameter = tier_of(config.offload.parameter),
                   .gradient = tier_of(config.offload.gradient),
                   .master = tier_of(config.offload.master_choice()),
                   .optimizer = tier_of(config.offload.optimizer)};
  options.offload = config.offload.how;
  if (options.tiers.parameter == Tier::Disk && config.offload.parameter_buffer_numel) {
    constexpr int64_t kBuffers = 5;  // DeepSpeed's
    const int group = config.parallel.shard_group_ranks == 0 ? ranks : config.parallel.shard_group_ranks;
    const int64_t shard_numel =
        config.offload.parameter_buffers.value_or(kBuffers) * *config.offload.parameter_buffer_numel;
    options.prefetch_bytes = std::min(options.prefetch_bytes, shard_numel * group * itemsize(*options.dtype));
  }
  options.overlap = config.zero.overlap_comm.value_or(options.overlap);
  return options;
}

bool runs_on_cuda(const ParallelConfig& parallel, int cuda_devices) {
  using Backend = ParallelConfig::Backend;
  return parallel.backend == Backend::Nccl || (parallel.backend == Backend::Auto && cuda_devices > 0);
}

LayerShare layer_share_of(const Config& config) {
  return {.ranks = config.parallel.tensor,
          .sequence = config.parallel.sequence,
          .vocabulary = config.parallel.vocabulary};
}

}  // namespace zero
