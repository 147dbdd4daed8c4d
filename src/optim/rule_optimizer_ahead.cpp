// Updates before the step: of single pieces, which count once they are accepted.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>

#include "optim/rule_optimizer.h"
#include "optim/update_segment.h"
#include "zero/error.h"

namespace zero {

AheadUpdates* RuleOptimizer::ahead() {
  return execution_ == Execution::kernels && updates_by_element(rule_) ? this : nullptr;
}

const OptimizerShard& RuleOptimizer::shard_of(int unit) const {
  const auto found = std::find_if(shards_.begin(), shards_.end(),
                                  [&](const OptimizerShard& shard) { return shard.unit == unit; });
  require(found != shards_.end(), ErrorKind::Internal, "AheadUpdates", "the unit has no shard");
  return *found;
}

std::vector<std::string_view> RuleOptimizer::kinds_ahead(int unit) const {
  std::vector<std::string_view> kinds;
  const auto lease = states_.lend(unit, {kMasterState, kParameterState}, StateStore::Use::Shape);
  const bool parameter_on_disk = states_.is_on_disk(unit, kParameterState);
  if (parameter_on_disk || !keeps_no_copy(lease)) kinds.push_back(kMasterState);
  if (parameter_on_disk) kinds.push_back(kParameterState);
  kinds.insert(kinds.end(), kinds_.begin(), kinds_.end());
  return kinds;
}

std::vector<StatePiece> RuleOptimizer::pieces(int unit) const {
  const std::vector<std::string_view> kinds = kinds_ahead(unit);
  const auto is_on_disk = [&](std::string_view kind) { return states_.is_on_disk(unit, kind); };
  // What lies in memory itself would need a copy of all that changes. A parameter that is all there is has
  // nothing beside it to wait for.
  if (!std::all_of(kinds.begin(), kinds.end(), is_on_disk)) return {};
  const bool has_master =
      !keeps_no_copy(states_.lend(unit, {kMasterState, kParameterState}, StateStore::Use::Shape));
  if (kinds_.empty() && !has_master) return {};
  return pieces_with(shard_of(unit), [](const ShardSegment&) { return true; });
}

void RuleOptimizer::announce(std::span<const int> units) {
  std::vector<size_t> order;
  for (const int unit : units)
    for (size_t i = 0; i < shards_.size(); ++i)
      if (shards_[i].unit == unit) order.push_back(i);
  for (size_t i = 0; i < shards_.size(); ++i)
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  order_ = std::move(order);
  std::vector<StatePiece> sweep;
  for (const int unit : units) {
    const std::vector<StatePiece> own = pieces(unit);
    sweep.insert(sweep.end(), own.begin(), own.end());
  }
  states_.announce(sweep, updated_kinds());
}

bool RuleOptimizer::is_next(const StatePiece& piece) const { return states_.is_next(piece, updated_kinds()); }

bool RuleOptimizer::is_there(const StatePiece& piece) const {
  return states_.is_there(piece, updated_kinds());
}

bool RuleOptimizer::skip_to(const StatePiece& piece) { return states_.skip_to(piece, updated_kinds()); }

at::Tensor RuleOptimizer::update(const StatePiece& piece, const StepInput& input, const at::Tensor& gradient,
                                 bool in_place) {
  static constexpr std::array kGradient{kGradientState}, kParameter{kParameterState};
  const at::NoGradGuard no_grad;
  const std::vector<std::string_view> kinds = kinds_ahead(piece.unit);
  at::Tensor parameter;
  if (!states_.is_on_disk(piece.unit, kParameterState))
    parameter = states_.lend(piece, kParameter, StateStore::Use::Read)[kParameterState].clone();
  StateStore::Lease in_store;
  if (!gradient.defined()) in_store = states_.lend(piece, kGradient, StateStore::Use::Read);
  RuleMemory memory{.lease = in_place ? states_.lend(piece, kinds, StateStore::Use::Write)
                                      : states_.lend_provisionally(piece, kinds),
                    .master = {},
                    .gradient = gradient.defined() ? gradient : in_store[kGradientState],
                    .parameter = {},
                    .states = {}};
  memory.master = memory.lease[kMasterState];
  const at::Tensor beside = parameter.defined() ? parameter : memory.lease[kParameterState];
  if (!memory.master.defined())
    memory.master = parameter;
  else if (parameter.defined() || !keeps_no_copy(memory.lease))
    memory.parameter = beside;
  for (const std::string& kind : kinds_) memory.states.push_back(memory.lease[kind]);
  for (const ShardSegment& segment : shard_of(piece.unit).segments) {
    const ShardSegment part = part_in(piece, segment);
    if (part.numel() == 0) continue;
    std::visit([&](const auto& rule) { update_segment(rule, memory, part, input, nullptr); }, rule_);
  }
  return parameter;
}

void RuleOptimizer::accept(const StatePiece& piece) { states_.accept(piece, updated_kinds()); }

}  // namespace zero
