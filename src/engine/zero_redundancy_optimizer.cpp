#include "zero/zero_redundancy_optimizer.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "saving/saving.h"
#include "sharding/sharded_model.h"
#include "zero/error.h"

namespace zero {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

EngineOptions options_of_wrapper(const ZeroRedundancyOptions& options) {
  EngineOptions result{.stage = 1};
  result.share_parameters = false;  // they stay readable, and writable, between steps
  result.split_master = false;      // which is noticed by comparing them with whole masters
  result.gradient_clipping = options.gradient_clipping;
  result.schedule = options.schedule;
  result.groups = options.groups;
  result.communication_dtype = options.communication_dtype;
  result.reduce_bucket_numel = options.reduce_bucket_numel;
  result.broadcast_initial_values = options.broadcast_initial_values;
  result.shard_group_ranks = options.shard_group_ranks;
  result.stochastic_rounding = options.optimizer_dtype == Dtype::bf16;
  result.rounding_seed = options.rounding_seed;
  return result;
}

void validate(const ZeroRedundancyOptions& options) {
  require(
      options.optimizer_dtype == Dtype::f32 || options.optimizer_dtype == Dtype::bf16, ErrorKind::Config,
      "optimizer_dtype",
      "expected fp32 or bf16, got " + std::string(to_string(static_cast<Dtype>(options.optimizer_dtype))));
}

NamedTensors trained(const NamedTensors& named) {
  NamedTensors result;
  for (const auto& one : named)
    if (one.second.requires_grad()) result.push_back(one);
  require(!result.empty(), ErrorKind::Config, "parameters", "none of them requires a gradient");
  return result;
}

NamedTensors numbered(const std::vector<at::Tensor>& parameters) {
  NamedTensors result;
  for (const at::Tensor& parameter : parameters)
    if (parameter.requires_grad()) result.emplace_back(std::to_string(result.size()), parameter);
  return result;
}

/// fp32 sums of gradients, by place in the list; undefined: none since they were dropped.
using GradientTotals = std::vector<at::Tensor>;

// Takes a gradient as soon as autograd has finished it.
class TotalHook : public torch::autograd::PostAccumulateGradHook {
 public:
  TotalHook(std::weak_ptr<GradientTotals> totals, size_t place) : totals_(std::move(totals)), place_(place) {}
  void operator()(const torch::autograd::Variable& variable) override {
    const auto totals = totals_.lock();
    if (totals == nullptr) return;  // the optimizer is gone
    const c10::NoGradGuard no_grad;
    const at::Tensor gradient = std::exchange(variable.mutable_grad(), at::Tensor());
    at::Tensor& total = (*totals)[place_];
    if (total.defined())
      total.add_(gradient);
    else
      total = (gradient.is_sparse() ? gradient.to_dense() : gradient).to(at::kFloat, false, /*copy=*/true);
  }

 private:
  std::weak_ptr<GradientTotals> totals_;
  size_t place_;
};

/// A model in shards, and how far it has come.
struct Sharded {
  Sharded(const NamedTensors& parameters, const OptimizerSpec& spec, const ZeroRedundancyOptions& options,
          Mesh mesh)
      : model(detail::parameters_of(parameters), spec, options_of_wrapper(options), std::move(mesh),
              /*seals=*/false) {
    model.saves_masters = options.save_masters;
  }

  // Half-precision values that were changed by hand replace the master's; untouched ones must not cost it its
  // precision.
  void take_over_changes() {
    for (detail::Unit& unit : model.units) {
      if (!unit.has_own_master()) continue;
      const auto lease = unit.lend_values(StateStore::Use::Write);
      const at::Tensor &master = lease[kMasterState], &shard = lease[kParameterState];
      const at::Tensor changed = master.to(shard.scalar_type()) != shard;
      at::Tensor(master).copy_(at::where(changed, shard.to(at::kFloat), master));
    }
  }

  void gather_parameters() {
    std::vector<int> units(model.units.size());
    std::iota(units.begin(), units.end(), 0);
    for (int unit : units) model.residency->pin(unit, false);
    for (int unit : units) model.residency->unpin(unit);
  }

  void count_last() {
    const std::optional<StepResult> step = std::exchange(last, std::nullopt);
    if (step) (step->skipped() ? counts.skipped_steps : counts.steps)++;
  }

  detail::ShardedModel model;
  detail::StepCounts counts;  // but for the last
  std::optional<StepResult> last;
};

}  // namespace

struct ZeroRedundancyOptimizer::State {
  State(const NamedTensors& named, OptimizerSpec optimizer, ZeroRedundancyOptions how, Mesh job)
      : parameters(trained(named)),
        spec(std::move(optimizer)),
        options(std::move(how)),
        mesh(std::move(job)),
        lr(base_lr(spec)) {
    validate(options);
    zero::validate(spec);
    zero::validate(options.groups);
    if (!options.lazy_init) make();
    if (!options.accumulate_in_fp32) return;
    totals = std::make_shared<GradientTotals>(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i)
      torch::autograd::impl::set_post_acc_grad_hooks(parameters[i].second,
                                                     std::make_unique<TotalHook>(totals, i));
  }

  Sharded& make() {
    if (!sharded) sharded = std::make_unique<Sharded>(parameters, spec, options, mesh);
    return *sharded;
  }

  /// What the next step takes of the parameter at a place; undefined: nothing.
  at::Tensor gradient_of(size_t place) const {
    return totals ? (*totals)[place] : parameters[place].second.grad();
  }

  NamedTensors parameters;  // that are trained
  OptimizerSpec spec;
  ZeroRedundancyOptions options;
  Mesh mesh;
  double lr;
  std::shared_ptr<GradientTotals> totals;  // with accumulate_in_fp32
  std::unique_ptr<Sharded> sharded;
};

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(const std::vector<at::Tensor>& parameters,
                                                 OptimizerSpec optimizer, ZeroRedundancyOptions options,
                                                 Mesh mesh)
    : ZeroRedundancyOptimizer(numbered(parameters), std::move(optimizer), std::move(options),
                              std::move(mesh)) {}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(const std::vector<std::pair<std::string, at::Tensor>>& named,
                                                 OptimizerSpec optimizer, ZeroRedundancyOptions options,
                                                 Mesh mesh)
    : state_(std::make_unique<State>(named, std::move(optimizer), std::move(options), std::move(mesh))) {}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;

void ZeroRedundancyOptimizer::initialise() { state_->make(); }

StepResult ZeroRedundancyOptimizer::step() {
  Sharded& sharded = state_->make();
  detail::ShardedModel& model = sharded.model;
  c10::NoGradGuard no_grad;
  sharded.take_over_changes();
  std::vector<std::pair<int, size_t>> order;  // parameters as the model numbers them, and places in the list
  for (size_t i = 0; i < state_->parameters.size(); ++i) {
    const auto place = model.place_of(state_->parameters[i].first);
    int number = place.parameter;
    for (int unit = 0; unit < place.unit; ++unit)
      number += static_cast<int>(model.layout(unit).parameters.size());
    order.emplace_back(number, i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  detail::Gradients& gradients = *model.gradients;
  gradients.begin_backward(/*boundary=*/true);
  std::vector<const void*> given;  // tied tensors that are one object have one gradient
  for (const auto& [number, i] : order) {
    const at::Tensor gradient = state_->gradient_of(i);
    const void* const object = state_->parameters[i].second.unsafeGetTensorImpl();
    if (!gradient.defined() || std::find(given.begin(), given.end(), object) != given.end()) continue;
    given.push_back(object);
    gradients.on_gradient(number, gradient);
  }
  gradients.end_backward();
  sharded.count_last();
  const auto& schedule = model.options.schedule;
  const int64_t steps = sharded.counts.steps;
  StepResult result = model.step(schedule ? schedule->lr_at(steps, state_->lr) : state_->lr,
                                 schedule ? schedule->betas_at(steps) : std::nullopt);
  sharded.last = result;
  sharded.gather_parameters();
  return result;
}

void ZeroRedundancyOptimizer::zero_grad() {
  for (const auto& [name, tensor] : state_->parameters) tensor.mutable_grad().reset();
  if (state_->totals) std::fill(state_->totals->begin(), state_->totals->end(), at::Tensor());
}

void ZeroRedundancyOptimizer::set_learning_rate(double lr) {
  require(!state_->options.schedule, ErrorKind::Usage, "set_learning_rate", "the optimizer has a schedule");
  require(lr >= 0, ErrorKind::Config, "lr", "expected >= 0, got " + std::to_string(lr));
  state_->lr = lr;
}

int64_t ZeroRedundancyOptimizer::state_bytes() const {
  if (!state_->sharded) return 0;
  const StateStore& states = state_->sharded->model.states;
  return states.owned_bytes() - states.owned_bytes(kGradientState);
}

const Plan& ZeroRedundancyOptimizer::plan() const {
  require(state_->sharded != nullptr, ErrorKind::Usage, "plan", "the optimizer is lazy and not made yet",
          "call initialise() or step() first");
  return state_->sharded->model.plan;
}

std::filesystem::path ZeroRedundancyOptimizer::save(const std::filesystem::path& directory,
                                                    const std::string& metadata, int keep_last) {
  Sharded& sharded = state_->make();
  c10::NoGradGuard no_grad;
  sharded.take_over_changes();
  sharded.count_last();
  sharded.model.settle();
  return detail::save(sharded.model, sharded.counts, directory,
                      {.metadata = metadata, .keep_last = keep_last, .frozen_from = {}});
}

std::string ZeroRedundancyOptimizer::load(const std::filesystem::path& checkpoint) {
  Sharded& sharded = state_->make();
  c10::NoGradGuard no_grad;
  sharded.count_last();
  sharded.model.settle();
  detail::Loaded loaded = detail::load(sharded.model, checkpoint);
  sharded.counts = loaded.counts;
  sharded.gather_parameters();
  return loaded.metadata;
}

}  // namespace zero
