#include <algorithm>
#include <numeric>

#include "base/nearest.h"
#include "compute/wait_place.h"
#include "engine/engine_state.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace zero {
namespace {

std::vector<int> units_named(const detail::ShardedModel& model, std::span<const std::string> names) {
  std::vector<int> units;
  for (const std::string& name : names) {
    auto named = std::find_if(model.units.begin(), model.units.end(),
                              [&](const detail::Unit& unit) { return unit.layout.name == name; });
    const int unit = named != model.units.end() ? static_cast<int>(named - model.units.begin())
                                                : model.place_of(name).unit;
    if (std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
  }
  return units;
}

std::vector<int> all_units(const detail::ShardedModel& model) {
  std::vector<int> units(model.units.size());
  std::iota(units.begin(), units.end(), 0);
  return units;
}

}  // namespace

GatherScope::GatherScope(Engine& engine, Access access)
    : state_(*engine.state_), units_(all_units(engine.state_->model)), access_(access) {
  open();
}

GatherScope::GatherScope(Engine& engine, std::span<const std::string> names, Access access)
    : state_(*engine.state_), units_(units_named(engine.state_->model, names)), access_(access) {
  open();
}

void GatherScope::open() {
  state_.begin_call();
  detail::BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  if (access_ == Access::Modify) state_.model.open_to_writes("GatherScope");
  for (int index : units_) {
    state_.model.residency->pin(index, access_ == Access::Modify);
    state_.watch.begin_scope(index, access_ == Access::Modify);
  }
}

void GatherScope::broadcast(int root) {
  detail::BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  for (int index : units_) {
    detail::Unit& unit = state_.model.units[static_cast<size_t>(index)];
    if (access_ == Access::Modify) state_.watch.take_in_replaced_of(index, root);
    if (unit.layout.padded_numel == 0 || state_.model.all.size() == 1) continue;
    const detail::WaitPlace place("values of a gather scope");
    state_.model.all.broadcast(unit.full.view(at::kByte), root, unit.layout.name).wait();
  }
}

GatherScope::~GatherScope() {
  detail::BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  for (int index : units_) {
    try {
      state_.watch.end_scope(index, access_ == Access::Modify);
    } catch (...) {
      state_.deferred = std::current_exception();
    }
    try {
      state_.model.residency->unpin(index);
    } catch (...) {
      state_.deferred = std::current_exception();
    }
  }
}

}  // namespace zero
