#include "zero/zero_redundancy_optimizer.h"

#include <numeric>
#include <utility>

#include "sharding/sharded_model.h"
#include "zero/error.h"

namespace zero {
namespace {

EngineOptions engine_options(const ZeroRedundancyOptions& options) {
  EngineOptions result{.stage = 1};
  result.share_parameters = false;  // they stay readable, and writable, between steps
  result.split_master = false;      // which is noticed by comparing them with whole masters
  result.gradient_clipping = options.gradient_clipping;
  result.schedule = options.schedule;
  result.communication_dtype = options.communication_dtype;
  result.reduce_bucket_numel = options.reduce_bucket_numel;
  result.broadcast_initial_values = options.broadcast_initial_values;
  return result;
}

std::vector<at::Tensor> trainable(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& parameter : parameters)
    if (parameter.requires_grad()) result.push_back(parameter);
  require(!result.empty(), ErrorKind::Config, "parameters", "none of them requires a gradient");
  return result;
}

}  // namespace

struct ZeroRedundancyOptimizer::State {
  State(const std::vector<at::Tensor>& parameters, const OptimizerSpec& spec,
        const ZeroRedundancyOptions& options, Mesh mesh)
      : model(detail::parameters_of(trainable(parameters)), spec, engine_options(options), std::move(mesh),
              /*seals=*/false),
        lr(base_lr(spec)) {}

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

  detail::ShardedModel model;
  double lr;
  int64_t steps = 0;  // but for the last
  std::optional<StepResult> last;
};

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(const std::vector<at::Tensor>& parameters,
                                                 OptimizerSpec optimizer, ZeroRedundancyOptions options,
                                                 Mesh mesh)
    : state_(std::make_unique<State>(parameters, std::move(optimizer), std::move(options), std::move(mesh))) {
}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;

StepResult ZeroRedundancyOptimizer::step() {
  detail::ShardedModel& model = state_->model;
  c10::NoGradGuard no_grad;
  state_->take_over_changes();
  detail::Gradients& gradients = *model.gradients;
  gradients.begin_backward(/*boundary=*/true);
  for (int i = model.parameter_count(); i-- > 0;)
    for (const at::Tensor& tensor : model.tensors_of(i))
      if (tensor.grad().defined()) gradients.on_gradient(i, tensor.grad());
  gradients.end_backward();
  if (state_->last && !std::exchange(state_->last, std::nullopt)->skipped()) state_->steps++;
  const auto& schedule = model.options.schedule;
  StepResult result = model.step(schedule ? schedule->lr_at(state_->steps, state_->lr) : state_->lr,
                                 schedule ? schedule->betas_at(state_->steps) : std::nullopt);
  state_->last = result;
  state_->gather_parameters();
  return result;
}

void ZeroRedundancyOptimizer::zero_grad() {
  for (int i = 0; i < state_->model.parameter_count(); ++i)
    for (const at::Tensor& tensor : state_->model.tensors_of(i)) tensor.mutable_grad().reset();
}

void ZeroRedundancyOptimizer::set_learning_rate(double lr) {
  require(!state_->model.options.schedule, ErrorKind::Usage, "set_learning_rate",
          "the optimizer has a schedule");
  require(lr >= 0, ErrorKind::Config, "lr", "expected >= 0, got " + std::to_string(lr));
  state_->lr = lr;
}

int64_t ZeroRedundancyOptimizer::state_bytes() const {
  const StateStore& states = state_->model.states;
  return states.owned_bytes() - states.owned_bytes(kGradientState);
}

const Plan& ZeroRedundancyOptimizer::plan() const { return state_->model.plan; }

}  // namespace zero
