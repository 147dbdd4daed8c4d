#include "optim/torch_optimizer.h"

#include <ATen/ATen.h>
#include <c10/util/ScopeExit.h>
#include <torch/optim/lbfgs.h>

#include "optim/rule_optimizer.h"
#include "optim/shards.h"
#include "optim/torch_state.h"
#include "zero/error.h"

namespace zero {
namespace {

using torch::optim::OptimizerParamGroup;

constexpr const char* kPlace = "TorchOptimizer";

/// Runs `call`, whose LibTorch errors become errors of the given kind.
template <class F>
auto guarded(ErrorKind kind, F call) {
  try {
    return call();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    fail(kind, kPlace, text.substr(0, text.find('\n')));
  }
}

std::unique_ptr<torch::optim::Optimizer> build(const TorchOptimizer& spec,
                                               std::vector<OptimizerParamGroup> groups) {
  const size_t given = groups.size();
  auto optimizer = guarded(ErrorKind::Config, [&] { return spec.make(std::move(groups)); });
  require(optimizer != nullptr, ErrorKind::Config, kPlace, "make returned no optimizer");
  require(!dynamic_cast<torch::optim::LBFGS*>(optimizer.get()), ErrorKind::Unsupported, kPlace,
          "torch::optim::LBFGS calls a closure several times a step and is not element-wise",
          "use another optimizer");
  require(optimizer->param_groups().size() == given, ErrorKind::Config, kPlace,
          "make was given " + std::to_string(given) + " parameter groups and returned an optimizer of " +
              std::to_string(optimizer->param_groups().size()),
          "pass the groups on to the optimizer's constructor");
  return optimizer;
}

/// The optimizer over one element: enough to ask for options and types.
std::unique_ptr<torch::optim::Optimizer> probe(const TorchOptimizer& spec) {
  at::Tensor leaf = at::zeros({1}).set_requires_grad(true);
  std::vector<OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{leaf});
  return build(spec, std::move(groups));
}

}  // namespace

double torch_base_lr(const TorchOptimizer& spec) {
  const auto optimizer = probe(spec);
  return guarded(ErrorKind::Unsupported,
                 [&] { return optimizer->param_groups().front().options().get_lr(); });
}

std::optional<int64_t> torch_state_bytes(const TorchOptimizer& spec) {
  const auto names = torch_state_names(*probe(spec));
  if (!names) return std::nullopt;
  return static_cast<int64_t>(names->size() * sizeof(float));
}

TorchShardOptimizer::TorchShardOptimizer(const TorchOptimizer& spec, std::vector<ParameterGroup> groups,
                                         StateStore& states, std::vector<OptimizerShard> shards,
                                         int parameters)
    : groups_(std::move(groups)), states_(states), steps_(parameters, 0) {
  const auto probed = probe(spec);
  type_ = torch_type_name(*probed);
  const auto names = torch_state_names(*probed);
  known_state_ = names.has_value();
  names_ = names.value_or(std::vector<std::string>{});
  for (auto& given : shards) shards_.push_back(make_shard(spec, std::move(given)));
}

TorchShardOptimizer::Shard TorchShardOptimizer::make_shard(const TorchOptimizer& spec,
                                                           OptimizerShard given) const {
  Shard shard;
  shard.given = std::move(given);
  {
    const auto lease = states_.lend(shard.given.unit, {kMasterState}, StateStore::Use::Shape);
    const at::Tensor& master = lease[kMasterState];
    for (const std::string& name : names_)
      states_.create(shard.given.unit, name, master.numel(), master.options(), shard.given.tier);
  }
  const auto lease = borrow(shard);
  std::vector<std::vector<at::Tensor>> leaves_of(groups_.size() + 1);
  for (const auto& segment : shard.given.segments) {
    // The same memory under a version counter of its own: updating the leaf is no in-place change of a view.
    at::Tensor leaf = piece(lease[kMasterState], segment).variable_data().set_requires_grad(true);
    shard.leaves.push_back(leaf);
    if (leaf.numel() > 0) leaves_of[segment.group].push_back(leaf);
  }
  if (shard.leaves.empty()) return shard;
  std::vector<OptimizerParamGroup> groups;
  groups.reserve(leaves_of.size());
  for (auto& leaves : leaves_of) groups.emplace_back(std::move(leaves));
  shard.optimizer = build(spec, std::move(groups));
  if (known_state_) {
    require(torch_state_names(*shard.optimizer) == names_, ErrorKind::Unsupported, kPlace,
            type_ + " has parameter groups that keep different state",
            "use the same amsgrad, momentum and centered in all groups");
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    const auto& decay = groups_[g].weight_decay;
    if (!decay) continue;
    require(set_weight_decay(shard.optimizer->param_groups()[g + 1].options(), *decay),
            ErrorKind::Unsupported, "parameter group \"" + groups_[g].pattern + "\"",
            "weight_decay cannot be set in " + type_, "set it in make, which gets the groups in order");
  }
  attach(shard, lease);
  detach(shard);
  return shard;
}

StateStore::Lease TorchShardOptimizer::borrow(const Shard& shard) const {
  std::vector<std::string_view> kinds{kMasterState, kParameterState};
  kinds.insert(kinds.end(), names_.begin(), names_.end());
  return states_.lend(shard.given.unit, kinds, StateStore::Use::Write);
}

std::vector<at::Tensor> TorchShardOptimizer::state_views(const StateStore::Lease& lease,
                                                         const ShardSegment& segment) const {
  std::vector<at::Tensor> views;
  for (const std::string& name : names_) views.push_back(piece(lease[name], segment));
  return views;
}

void TorchShardOptimizer::attach(Shard& shard, const StateStore::Lease& lease) const {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < shard.leaves.size(); ++i) {
    const ShardSegment& segment = shard.given.segments[i];
    shard.leaves[i].set_data(piece(lease[kMasterState], segment));
    if (!known_state_ || segment.numel() == 0) continue;
    restore_state(*shard.optimizer, shard.leaves[i], state_views(lease, segment), steps_[segment.parameter]);
  }
}

void TorchShardOptimizer::detach(Shard& shard) const {
  for (at::Tensor& leaf : shard.leaves) {
    leaf.mutable_grad() = at::Tensor();
    if (known_state_) shard.optimizer->state().erase(leaf.unsafeGetTensorImpl());
    leaf.set_data(at::empty({0}, leaf.options()));
  }
}

void TorchShardOptimizer::set_rates(Shard& shard, const StepInput& input) const {
  auto& groups = shard.optimizer->param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    const double lr = g == 0 ? input.lr : groups_[g - 1].lr.value_or(input.lr * groups_[g - 1].lr_scale);
    guarded(ErrorKind::Unsupported, [&] { groups[g].options().set_lr(lr); });
    if (!input.betas) continue;
    require(set_betas(groups[g].options(), input.betas->beta1, input.betas->beta2), ErrorKind::Unsupported,
            "ShardOptimizer::step", type_ + " has no betas for the schedule to move",
            "set cycle_momentum to false");
  }
}

void TorchShardOptimizer::set_gradients(Shard& shard, const StepInput& input) const {
  const auto lease = states_.lend(shard.given.unit, {kGradientState}, StateStore::Use::Read);
  for (size_t i = 0; i < shard.leaves.size(); ++i) {
    const auto& segment = shard.given.segments[i];
    at::Tensor gradient;
    if (input.used[segment.parameter] && segment.numel() > 0) {
      gradient =
          piece(lease[kGradientState], segment).to(at::kFloat).mul(static_cast<float>(input.gradient_scale));
    }
    shard.leaves[i].mutable_grad() = gradient;
  }
}

void TorchShardOptimizer::step(const StepInput& input) {
  check_step(input, steps_.size());
  at::NoGradGuard no_grad;
  for (auto& shard : shards_) {
    if (shard.optimizer) set_rates(shard, input);
  }
  for (auto& shard : shards_) {
    if (!shard.optimizer) continue;
    const auto lease = borrow(shard);
    const bool copies = !keeps_no_copy(lease);
    attach(shard, lease);
    const auto let_go = c10::make_scope_exit([&] { detach(shard); });
    set_gradients(shard, input);
    shard.optimizer->step();
    for (size_t i = 0; i < shard.leaves.size(); ++i) {
      const auto& segment = shard.given.segments[i];
      if (!input.used[segment.parameter] || segment.numel() == 0) continue;
      if (known_state_) adopt_state(*shard.optimizer, shard.leaves[i], state_views(lease, segment));
      if (copies) piece(lease[kParameterState], segment).copy_(piece(lease[kMasterState], segment));
    }
  }
  for (size_t i = 0; i < steps_.size(); ++i) steps_[i] += input.used[i] ? 1 : 0;
}

void TorchShardOptimizer::require_known_state() const {
  require(known_state_, ErrorKind::Unsupported, kPlace,
          "the state of " + type_ + " cannot be saved or loaded",
          "use torch::optim's Adam, AdamW, SGD, RMSprop or Adagrad, or zero's own optimizers");
}

std::vector<std::string> TorchShardOptimizer::state_names() const {
  require_known_state();
  return names_;
}

void TorchShardOptimizer::set_parameter_steps(std::span<const int64_t> steps) {
  require_known_state();
  check_steps(steps, steps_.size());
  steps_.assign(steps.begin(), steps.end());
  // What has taken no step begins with the state of a new optimizer.
  for (auto& shard : shards_) {
    if (!shard.optimizer) continue;
    const auto lease = borrow(shard);
    attach(shard, lease);
    detach(shard);
  }
}

}  // namespace zero
