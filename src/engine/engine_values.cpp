// What an engine holds of a parameter by its name, to read and to write: values, gradient, optimizer states.
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

#include "engine/engine_state.h"
#include "optim/eight_bit.h"
#include "zero/error.h"

namespace zero {
namespace {

using detail::EngineState;
using detail::ShardedModel;
using Place = ShardedModel::Place;

std::optional<ShardSegment> segment_of(const ShardedModel& model, const std::string& name) {
  const Place place = model.place_of(name);
  const UnitParameter& parameter = model.layout(place.unit).parameters[static_cast<size_t>(place.parameter)];
  for (const ShardSegment& segment : model.segments(place.unit))
    if (segment.name == parameter.name) return segment;
  return {};
}

LocalValues local_part(const ShardedModel& model, const std::string& name, const at::Tensor& shard) {
  const auto segment = segment_of(model, name);
  if (!segment) return {.begin = 0, .values = at::empty({0})};
  const at::Tensor part = shard.narrow(0, segment->begin, segment->numel());
  return {.begin = segment->parameter_begin, .values = part.to(at::kCPU, at::kFloat, false, /*copy=*/true)};
}

/// This rank's part of full values, or of what is local already: fp32 [its elements].
at::Tensor part_of(const ShardedModel& model, const std::string& name, const at::Tensor& values,
                   bool is_full) {
  const Place place = model.place_of(name);
  const UnitParameter& parameter = model.layout(place.unit).parameters[static_cast<size_t>(place.parameter)];
  const auto segment = segment_of(model, name);
  const int64_t numel = segment ? segment->numel() : 0;
  require(values.defined() && values.is_floating_point(), ErrorKind::Usage, name,
          "its new values are not floating-point numbers");
  if (is_full)
    require(values.sizes() == parameter.shape, ErrorKind::Usage, name,
            "its new values have shape " + c10::str(values.sizes()) + ", expected " +
                c10::str(at::IntArrayRef(parameter.shape)));
  else
    require(values.dim() == 1 && values.numel() == numel, ErrorKind::Usage, name,
            "its new values have shape " + c10::str(values.sizes()) + ", expected [" + std::to_string(numel) +
                "], what this rank holds of it");
  const at::Tensor flat = values.detach().to(at::kFloat).contiguous().view({-1});
  return is_full && segment ? flat.narrow(0, segment->parameter_begin, numel) : flat.narrow(0, 0, numel);
}

void require_gradients(const EngineState& state, const std::string& name) {
  const ShardedModel& model = state.model;
  require(model.layout(model.place_of(name).unit).trainable, ErrorKind::Usage, name,
          "the parameter is frozen: it has no gradient");
  require(state.micro_step >= model.plan.accumulation_steps, ErrorKind::Usage, name,
          "gradients are there between the last backward() and step()");
  require(!model.has_used_up(model.place_of(name).unit), ErrorKind::Usage, name,
          "its gradient was used up in backward by the update of its unit",
          "set offload.step_in_backward to off to see gradients that are on disk");
}

/// Null where it has no such state that every rank keeps whole.
std::optional<WholeState> whole_state(const ShardedModel& model, const std::string& name,
                                      const std::string& kind) {
  model.place_of(name);
  for (WholeState& one : model.optimizer->whole_states())
    if (one.name == name && one.kind == kind) return std::move(one);
  return {};
}

at::Tensor values_of(const WholeState& one, const StateStore::Lease& lease) {
  return lease[one.kind].narrow(0, one.begin, c10::multiply_integers(one.shape)).view(one.shape);
}

/// The unit, which has such a state of elements.
int unit_with_state(const ShardedModel& model, const std::string& name, const std::string& kind) {
  const int unit = model.place_of(name).unit;
  require(!whole_state(model, name, kind), ErrorKind::Usage, name,
          "every rank keeps its optimizer state '" + kind + "' whole", "use the call for full states");
  const std::vector<std::string> kinds = model.optimizer->state_names();
  const bool is_known = std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
  require(is_known && model.states.holds(unit, kind), ErrorKind::Usage, name,
          "it has no optimizer state '" + kind + "'");
  require(model.states.elements_each(unit, kind) == 1, ErrorKind::Usage, name,
          "its optimizer state '" + kind + "' is of blocks, not of elements");
  return unit;
}

/// A moment in 8 bits: "exp_avg" of "exp_avg_codes" and "exp_avg_scales".
struct NarrowState {
  std::string codes, scales;
  const eight_bit::DynamicMap* map;
};

/// Null where the unit has no moment of that name, or has it in fp32.
std::optional<NarrowState> narrow_state(const ShardedModel& model, const std::string& name,
                                        const std::string& kind) {
  const std::vector<std::string> kinds = model.optimizer->state_names();
  const auto codes = std::find(kinds.begin(), kinds.end(), kind + "_codes");
  if (codes == kinds.end() || !model.states.holds(model.place_of(name).unit, *codes)) return {};
  const auto moment = static_cast<size_t>(codes - kinds.begin()) / 2;  // its scales follow its codes
  return NarrowState{
      .codes = *codes, .scales = *(codes + 1), .map = &eight_bit::DynamicMap::of_moment(moment)};
}

/// The segment's blocks: each begins where one does.
at::Tensor scales_of(const at::Tensor& scales, const ShardSegment& segment) {
  return scales.narrow(0, segment.begin / eight_bit::kBlockNumel, eight_bit::blocks_of(segment.numel()));
}

/// fp32 [shard_numel] on the CPU, of which only the parameter's elements are set.
at::Tensor widened(ShardedModel& model, const std::string& name, const NarrowState& narrow) {
  const auto lease = model.states.lend(
      model.place_of(name).unit, {std::string_view(narrow.codes), narrow.scales}, StateStore::Use::Read);
  const at::Tensor shard = at::zeros({lease[narrow.codes].numel()}, at::kFloat);
  if (const auto segment = segment_of(model, name)) {
    const at::Tensor codes = lease[narrow.codes].narrow(0, segment->begin, segment->numel()).cpu(),
                     scales = scales_of(lease[narrow.scales], *segment).cpu();
    eight_bit::dequantise(*narrow.map, codes.const_data_ptr<uint8_t>(), scales.const_data_ptr<float>(),
                          shard.mutable_data_ptr<float>() + segment->begin, segment->numel());
  }
  return shard;
}

void write_narrow(ShardedModel& model, const std::string& name, const NarrowState& narrow,
                  const at::Tensor& part) {
  const auto segment = segment_of(model, name);
  if (!segment) return;
  const at::Tensor values = part.cpu(), codes = at::empty({values.numel()}, at::kByte),
                   scales = at::empty({eight_bit::blocks_of(values.numel())}, at::kFloat);
  eight_bit::quantise(*narrow.map, values.const_data_ptr<float>(), codes.mutable_data_ptr<uint8_t>(),
                      scales.mutable_data_ptr<float>(), values.numel());
  const auto lease = model.states.lend(
      model.place_of(name).unit, {std::string_view(narrow.codes), narrow.scales}, StateStore::Use::Write);
  lease[narrow.codes].narrow(0, segment->begin, segment->numel()).copy_(codes);
  scales_of(lease[narrow.scales], *segment).copy_(scales);
}

void write_state(EngineState& state, const std::string& name, std::string_view kind, const at::Tensor& part) {
  const auto segment = segment_of(state.model, name);
  if (!segment) return;
  const int unit = state.model.place_of(name).unit;
  const auto lease = state.model.states.lend(unit, {kind}, StateStore::Use::Write);
  lease[kind].narrow(0, segment->begin, segment->numel()).copy_(part);
}

void write_parameter(EngineState& state, const std::string& name, const at::Tensor& values, bool is_full) {
  state.begin_call();
  ShardedModel& model = state.model;
  require(!model.residency->in_pass(ResidencyPolicy::Pass::Train), ErrorKind::Usage, name,
          "its values are written in the middle of a step", "write them after step() or abandon_pass()");
  model.residency->require_no_pins();
  const at::Tensor part = part_of(model, name, values, is_full);
  state.settle();
  model.residency->finish_fetches();
  if (const auto segment = segment_of(model, name))
    model.units[static_cast<size_t>(model.place_of(name).unit)].set_values(segment->begin, part);
  model.residency->values_changed(/*frozen_too=*/true);
}

void write_gradient(EngineState& state, const std::string& name, const at::Tensor& values, bool is_full) {
  require_gradients(state, name);
  const at::Tensor part = part_of(state.model, name, values, is_full);
  write_state(state, name, kGradientState, part / state.model.gradient_scale());
}

void write_optimizer_state(EngineState& state, const std::string& name, const std::string& kind,
                           const at::Tensor& values, bool is_full) {
  if (const auto one = is_full ? whole_state(state.model, name, kind) : std::nullopt) {
    require(values.defined() && values.is_floating_point() && values.sizes() == one->shape, ErrorKind::Usage,
            name,
            "new values of '" + kind + "' are not floating-point numbers of shape " +
                c10::str(at::IntArrayRef(one->shape)));
    state.settle();
    state.model.open_to_writes(name);
    const auto lease =
        state.model.states.lend(one->unit, {std::string_view(one->kind)}, StateStore::Use::Write);
    values_of(*one, lease).copy_(values.detach());
    return;
  }
  const auto narrow = narrow_state(state.model, name, kind);
  if (!narrow) unit_with_state(state.model, name, kind);
  const at::Tensor part = part_of(state.model, name, values, is_full);
  state.settle();
  state.model.open_to_writes(name);
  if (narrow)
    write_narrow(state.model, name, *narrow, part);
  else
    write_state(state, name, kind, part);
}

}  // namespace

at::Tensor Engine::full_parameter(const std::string& name) {
  const auto place = state_->model.place_of(name);
  const detail::Unit& unit = state_->model.units[static_cast<size_t>(place.unit)];
  const auto lease = unit.lend_values(StateStore::Use::Read);
  return state_->model.gather(place, unit.values(lease));
}

at::Tensor Engine::full_gradient(const std::string& name) {
  ShardedModel& model = state_->model;
  require_gradients(*state_, name);
  const auto place = model.place_of(name);
  const auto lease = model.states.lend(place.unit, {kGradientState}, StateStore::Use::Read);
  return model.gather(place, lease[kGradientState]).mul_(model.gradient_scale());
}

at::Tensor Engine::full_optimizer_state(const std::string& name, const std::string& kind) {
  ShardedModel& model = state_->model;
  if (const auto one = whole_state(model, name, kind)) {
    const auto whole = model.states.lend(one->unit, {std::string_view(one->kind)}, StateStore::Use::Read);
    return values_of(*one, whole).clone();
  }
  if (const auto narrow = narrow_state(model, name, kind))
    return model.gather(model.place_of(name), widened(model, name, *narrow));
  const int unit = unit_with_state(model, name, kind);
  const auto lease = model.states.lend(unit, {std::string_view(kind)}, StateStore::Use::Read);
  return model.gather(model.place_of(name), lease[kind]);
}

LocalValues Engine::local_parameter(const std::string& name) {
  const detail::Unit& unit = state_->model.units[static_cast<size_t>(state_->model.place_of(name).unit)];
  const auto lease = unit.lend_values(StateStore::Use::Read);
  return local_part(state_->model, name, unit.values(lease));
}

LocalValues Engine::local_gradient(const std::string& name) {
  ShardedModel& model = state_->model;
  require_gradients(*state_, name);
  const auto lease = model.states.lend(model.place_of(name).unit, {kGradientState}, StateStore::Use::Read);
  LocalValues part = local_part(model, name, lease[kGradientState]);
  part.values.mul_(model.gradient_scale());
  return part;
}

LocalValues Engine::local_optimizer_state(const std::string& name, const std::string& kind) {
  ShardedModel& model = state_->model;
  if (const auto narrow = narrow_state(model, name, kind))
    return local_part(model, name, widened(model, name, *narrow));
  const int unit = unit_with_state(model, name, kind);
  const auto lease = model.states.lend(unit, {std::string_view(kind)}, StateStore::Use::Read);
  return local_part(model, name, lease[kind]);
}

void Engine::set_full_parameter(const std::string& name, const at::Tensor& values) {
  write_parameter(*state_, name, values, true);
}
void Engine::set_local_parameter(const std::string& name, const at::Tensor& values) {
  write_parameter(*state_, name, values, false);
}
void Engine::set_full_gradient(const std::string& name, const at::Tensor& values) {
  write_gradient(*state_, name, values, true);
}
void Engine::set_local_gradient(const std::string& name, const at::Tensor& values) {
  write_gradient(*state_, name, values, false);
}
void Engine::set_full_optimizer_state(const std::string& name, const std::string& kind,
                                      const at::Tensor& values) {
  write_optimizer_state(*state_, name, kind, values, true);
}
void Engine::set_local_optimizer_state(const std::string& name, const std::string& kind,
                                       const at::Tensor& values) {
  write_optimizer_state(*state_, name, kind, values, false);
}

}  // namespace zero
