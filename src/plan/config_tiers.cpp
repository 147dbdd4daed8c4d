#include "plan/config_tiers.h"

#include <algorithm>

#include "base/error_text.h"
#include "plan/config_options.h"
#include "plan/state_bytes.h"
#include "zero/activations.h"
#include "zero/error.h"
#include "zero/model_shape.h"
#include "zero/plan_report.h"

namespace zero {

TierRequest config_tier_request(const Config& config, const EngineOptions& options,
                                const TierMachine& machine) {
  const OffloadConfig& offload = config.offload;
  const auto or_any = [](int64_t bytes) { return bytes < 0 ? INT64_MAX : bytes; };
  TierRequest request{.movable = {.parameter = offload.parameter == TierChoice::Auto,
                                  .gradient = offload.gradient == TierChoice::Auto,
                                  .master = offload.master_choice() == TierChoice::Auto,
                                  .optimizer = offload.optimizer == TierChoice::Auto},
                      .memory_bytes = offload.memory_bytes,
                      .host_bytes = or_any(offload.host_memory_bytes),
                      .disk_bytes = std::min(or_any(offload.disk_bytes), machine.disk_free_bytes),
                      .rates = machine.rates};
  request.activations =
      activation_bytes(shape_of(config), config.train_micro_batch_size, config.data.sequence_length,
                       *options.dtype, config.recompute, layer_share_of(config));
  return request;
}

namespace {

// A checkpoint in the background is written from a copy, but from the states themselves where some are on
// disk.
TierPlan choose(const Config& config, const ModuleSpec& model, const EngineOptions& options,
                const RankPlaces& places, TierRequest request) {
  const OptimizerBytes optimizer = bytes_of_rule(config.optimizer.rule);
  const CheckpointConfig& saving = config.checkpoint;
  if (saving.async && saving.interval_steps > 0) {
    const Plan plan = make_plan(model, options, places, optimizer);
    const int64_t copy_bytes = save_copy_bytes(plan, saving.trainable_only);
    TierRequest with_copy = request;
    with_copy.other_bytes = copy_bytes;
    if (peak_bytes(plan, request.activations) + copy_bytes <= request.memory_bytes)
      return choose_tiers(model, options, places, optimizer, with_copy);
    TierPlan without = choose_tiers(model, options, places, optimizer, request);
    if (without.disk_bytes > 0) return without;
    return choose_tiers(model, options, places, optimizer, with_copy);
  }
  return choose_tiers(model, options, places, optimizer, request);
}

}  // namespace

std::optional<TierPlan> choose_config_tiers(const Config& config, const ModuleSpec& model,
                                            const EngineOptions& options, const RankPlaces& places,
                                            const TierMachine& machine) {
  if (!config.offload.is_auto()) return std::nullopt;
  try {
    return choose(config, model, options, places, config_tier_request(config, options, machine));
  } catch (const Error& error) {
    // The choice knows nothing of files.
    fail(error.kind(), config.place("offload"), text_without_kind(error));
  }
}

}  // namespace zero
