#include "zero/adaptive_placement.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <utility>

#include "base/error_text.h"
#include "engine/engine_access.h"
#include "mesh/agree.h"
#include "optim/shard_optimizer.h"
#include "plan/state_bytes.h"
#include "sharding/describe_parts.h"
#include "zero/cpu_allocator.h"
#include "zero/error.h"
#include "zero/initial_values.h"
#include "zero/memory_in_use.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

/// Stands for values that a load is about to bring: the module's own are gone with the old engine.
class ValuesToCome : public InitialValues {
 public:
  bool holds(const std::string& /*name*/) const override { return true; }
  void read(const std::string& /*name*/, const BoxRange& /*range*/, at::Tensor out) const override {
    out.zero_();
  }
};

// Collective.
void remove_together(const Mesh& mesh, const std::filesystem::path& directory) {
  detail::together(mesh, "moved states", [&] {
    if (mesh.rank() == 0) std::filesystem::remove_all(directory);
  });
}

/// Bytes of a rank's states that are in another tier by the one plan than by the other.
int64_t bytes_between(const Plan& before, const Plan& after) {
  int64_t bytes = 0;
  for (size_t i = 0; i < before.units.size(); ++i) {
    const UnitLayout& unit = before.units[i];
    const StateTiers &was = unit.tiers, &is = after.units[i].tiers;
    if (was.parameter != is.parameter) bytes += unit.shard_numel * itemsize(unit.dtype);
    if (!unit.trainable) continue;
    if (was.gradient != is.gradient) bytes += unit.shard_numel * before.state.gradient_bytes;
    if (was.master != is.master) bytes += unit.shard_numel * master_bytes_of(before.state, unit.dtype);
    if (was.optimizer != is.optimizer) bytes += before.state.optimizer_bytes_of(unit.shard_numel);
  }
  return bytes;
}

/// Where another rank is late, the gradient that is to be added to its bucket waits. Whether one is differs
/// from step to step, so that a step that was measured may have been without.
int64_t late_gradient_bytes(const Plan& plan) {
  return plan.buckets_share_memory || plan.sums_replicas_in_buckets ? plan.rank.largest_gradient_bytes : 0;
}

/// What peak_bytes() must count as activations for a plan's peak to be what was measured.
int64_t activations_of(const Plan& plan, int64_t measured_bytes) {
  int64_t least = 0, beyond = measured_bytes + 1;
  while (beyond - least > 1) {
    const int64_t kept = least + (beyond - least) / 2;
    (peak_bytes(plan, {.kept = kept, .loss = 0, .again = 0}) <= measured_bytes ? least : beyond) = kept;
  }
  return least;
}

}  // namespace

void move_states(Engine& engine, const TierPlan& tiers, const std::filesystem::path& directory) {
  const Mesh mesh = engine.mesh();
  const EngineOptions before = detail::EngineAccess::state(engine).model.options;
  require(!engine.is_saving(), ErrorKind::Usage, "move_states", "a save is under way",
          "call finish_save() first");
  const detail::RemadeFrom from = detail::EngineAccess::remade_from(engine);
  const std::filesystem::path saved = engine.save(directory);
  EngineOptions after = before;
  use_tiers(after, tiers);
  const auto put = [&](EngineOptions options) {
    options.initial_values = std::make_shared<ValuesToCome>();
    detail::EngineAccess::remake(engine, options, from);
    engine.load(saved);
  };
  try {
    put(after);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Comm) throw;
    put(before);
    remove_together(mesh, directory);
    throw;
  }
  remove_together(mesh, directory);
}

AdaptivePlacement::AdaptivePlacement(Engine& engine, EngineOptions options, const TierRequest& request,
                                     std::filesystem::path directory, DevicePeak device_peak)
    : engine_(&engine),
      options_(std::move(options)),
      request_(request),
      directory_(std::move(directory)),
      device_peak_(std::move(device_peak)) {
  const bool on_cpu = engine.mesh().device().is_cpu();
  require(on_cpu || device_peak_, ErrorKind::Unsupported, "AdaptivePlacement",
          "the engine computes on a device whose memory nobody measures",
          "give it device_peak, or choose a placement for the largest activations");
  require(!on_cpu || cpu_allocator_stats().peak_bytes > 0, ErrorKind::Usage, "AdaptivePlacement",
          "the memory of tensors is not measured", "call use_training_allocator() before the model is made");
  detail::EngineAccess::remade_from(engine);
  require(rule_of(detail::EngineAccess::state(engine).optimizer).has_value(), ErrorKind::Unsupported,
          "AdaptivePlacement", "a torch optimizer's states are not moved while it is used",
          "use one of zero's own optimizers");
  options_.initial_values = nullptr;
  take_peak();
}

// Of this rank where it computes, with its part of what a host's ranks share; begins anew.
int64_t AdaptivePlacement::take_peak() {
  if (!engine_->mesh().device().is_cpu()) return device_peak_();
  const int64_t peak = memory_in_use().peak_bytes;
  reset_memory_peak();
  return peak;
}

// Of the rank that took the most; begins to measure anew. Collective.
int64_t AdaptivePlacement::measure() {
  const at::Tensor most = at::full({1}, static_cast<double>(take_peak()),
                                   at::TensorOptions(at::kDouble).device(engine_->mesh().device()));
  engine_->mesh().world().all_reduce(most, Group::Reduce::Max, "measured memory").wait();
  return static_cast<int64_t>(most.item<double>());
}

TierPlan AdaptivePlacement::choose_for(const ActivationBytes& measured) const {
  TierRequest request = request_;
  request.activations = measured;
  const int64_t late = late_gradient_bytes(engine_->plan());
  if (late == 0) return choose(request);
  try {
    request.other_bytes += late;
    return choose(request);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Config) throw;
    request.other_bytes -= late;
    return choose(request);
  }
}

TierPlan AdaptivePlacement::choose(const TierRequest& request) const {
  const detail::EngineState& state = detail::EngineAccess::state(*engine_);
  ModuleSpec spec = state.parameters.spec;
  detail::describe_parts(spec, state.model.mesh, options_.parts);
  const bool on_cpu = state.model.mesh.device().is_cpu();
  const RankPlaces places = RankPlaces::of(state.model.all.memories(), on_cpu);
  return choose_tiers(spec, options_, places, bytes_of_rule(*rule_of(state.optimizer)), request);
}

std::string AdaptivePlacement::after_step() {
  if (engine_->is_saving()) return "";
  peak_bytes_ = measure();
  const int64_t budget = request_.memory_bytes;
  if (peak_bytes_ <= budget) return "";
  const Plan before = engine_->plan();
  const int64_t activations = activations_of(before, peak_bytes_);
  const ActivationBytes& planned = request_.activations;
  const std::string why = "a step took " + human_bytes(peak_bytes_) + " of a rank's memory, " +
                          human_bytes(peak_bytes_ - budget) + " more than " + human_bytes(budget) +
                          ": activations " + human_bytes(activations) + " where " +
                          human_bytes(planned.kept + std::max(planned.loss, planned.again)) + " were planned";
  const ActivationBytes measured{.kept = activations, .loss = 0, .again = 0};
  TierPlan tiers;
  try {
    tiers = choose_for(measured);
  } catch (const Error& error) {
    fail(error.kind(), "offload.memory", why + "; " + text_without_kind(error));
  }
  const int64_t moved = bytes_between(before, tiers.plan);
  move_states(*engine_, tiers, directory_);
  request_.activations = measured;
  ++moves_;
  moved_bytes_ += moved;
  take_peak();
  return why + "; moved " + human_bytes(moved) + " of its states, on disk are " +
         human_bytes(tiers.disk_bytes) +
         (tiers.host_bytes > 0 ? " and on the host " + human_bytes(tiers.host_bytes) : "") +
         " now, and the next peak should be " + human_bytes(tiers.peak_bytes);
}

}  // namespace zero
