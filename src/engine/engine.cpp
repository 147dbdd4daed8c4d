#include "zero/engine.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <utility>

#include "engine/engine_state.h"
#include "engine/save_job.h"
#include "engine/target_gradients.h"
#include "engine/tied_gradients.h"
#include "zero/error.h"

namespace zero {
namespace detail {
namespace {

// Moves a parameter's gradient to the shards as soon as autograd has finished it.
class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(std::shared_ptr<HookLink> link, int parameter)
      : link_(std::move(link)), parameter_(parameter) {}
  void operator()(const torch::autograd::Variable& variable) override {
    if (link_->state == nullptr) return;
    BypassIntercept bypass;
    c10::NoGradGuard no_grad;
    at::Tensor gradient = std::exchange(variable.mutable_grad(), at::Tensor());
    link_->state->model.gradients->on_gradient(parameter_, gradient);
  }

 private:
  std::shared_ptr<HookLink> link_;
  int parameter_;
};

}  // namespace

EngineState::EngineState(ModelParameters parameters, const OptimizerSpec& optimizer,
                         const EngineOptions& options, Mesh mesh)
    : model(std::move(parameters), optimizer, options, std::move(mesh)),
      base_rate(base_lr(optimizer)),
      link(std::make_shared<HookLink>(HookLink{this})) {
  for (int i = 0; i < model.parameter_count(); ++i)
    for (const at::Tensor& tensor : model.tensors_of(i))
      if (tensor.requires_grad())
        torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<GradientHook>(link, i));
}

EngineState::~EngineState() { link->state = nullptr; }

void EngineState::require_step_not_due() const {
  require(micro_step < model.options.accumulation_steps, ErrorKind::Usage, "backward",
          "all " + std::to_string(model.options.accumulation_steps) + " micro-batches of this step are done",
          "call step() first");
}

void EngineState::rethrow_deferred() {
  if (deferred) std::rethrow_exception(std::exchange(deferred, nullptr));
}

void EngineState::fail_pass(const char* reason) noexcept {
  model.mesh.report_failure(reason);
  try {
    model.gradients->abandon();
    micro_step = 0;
    if (model.residency->in_pass()) model.residency->end_pass();
  } catch (...) {
    // The first error is the one to report; this pass is over either way.
  }
}

double EngineState::rate() const {
  return model.options.schedule ? model.options.schedule->lr_at(steps, base_rate) : base_rate;
}

struct ForwardScope::Guards {
  explicit Guards(EngineState& state) : call(state, Trace::Row::Compute, "forward") {}
  EngineCall call;
  std::optional<InterceptOperators> intercept;
  // TorchScript's optimised graphs may run fused kernels that read storages without the dispatcher.
  torch::jit::GraphOptimizerEnabledGuard plain_graphs{false};
  bool evaluates = false;
};

ForwardScope::ForwardScope(EngineState& state) : state_(state) {
  state.rethrow_deferred();
  Residency& residency = *state.model.residency;
  auto guards = std::make_unique<Guards>(state);
  bool evaluates = false;
  if (!residency.in_pass()) {
    evaluates = !c10::GradMode::is_enabled();
    const bool values_last = evaluates || !state.at_boundary();
    residency.begin_pass(evaluates ? ResidencyPolicy::Pass::Evaluate : ResidencyPolicy::Pass::Train,
                         values_last);
  }
  guards->intercept.emplace(nullptr, state.model.options.fast_operators);
  guards->evaluates = evaluates;
  guards_ = std::move(guards);
}

void ForwardScope::failed(const char* reason) noexcept {
  guards_.reset();
  state_.fail_pass(reason);
}

ForwardScope::~ForwardScope() {
  if (!guards_) return;
  guards_->intercept.reset();
  try {
    if (guards_->evaluates)
      state_.model.residency->end_pass();
    else
      state_.model.residency->end_forward();
  } catch (...) {
    state_.deferred = std::current_exception();
  }
}

}  // namespace detail

Engine::Engine(torch::nn::Module& module, OptimizerSpec optimizer, EngineOptions options, Mesh mesh)
    : state_(std::make_unique<detail::EngineState>(detail::parameters_of(module), std::move(optimizer),
                                                   std::move(options), std::move(mesh))) {}

Engine::Engine(torch::jit::Module& module, OptimizerSpec optimizer, EngineOptions options, Mesh mesh)
    : state_(std::make_unique<detail::EngineState>(detail::parameters_of(module), std::move(optimizer),
                                                   std::move(options), std::move(mesh))) {}

Engine::~Engine() = default;

void Engine::backward(const at::Tensor& loss) {
  require(loss.defined() && loss.numel() == 1, ErrorKind::Usage, "backward", "expected a scalar loss",
          "give outputs and their gradients instead");
  backward(std::vector<at::Tensor>{loss}, {});
}

void Engine::backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients) {
  detail::EngineState& state = *state_;
  state.rethrow_deferred();
  state.require_step_not_due();
  const detail::EngineCall call(state, Trace::Row::Compute, "backward");
  for (const at::Tensor& output : outputs)
    require(output.defined() && output.requires_grad(), ErrorKind::Usage, "backward",
            "an output needs no gradient",
            "compute it inside engine.forward() from trainable parameters, without NoGradGuard");
  detail::Residency& residency = *state.model.residency;
  if (!residency.in_pass()) residency.begin_pass(ResidencyPolicy::Pass::Train, !state.at_boundary());
  state.model.gradients->begin_backward(state.at_boundary());
  try {
    if (state.model.options.row_gradients) detail::prepare_tied_gradients(outputs);
    if (state.model.options.fast_operators) detail::prepare_target_gradients(outputs);
    {
      detail::InterceptOperators intercept(nullptr, state.model.options.fast_operators);
      torch::autograd::backward(outputs, gradients);
    }
    detail::BypassIntercept bypass;
    c10::NoGradGuard no_grad;
    state.model.gradients->end_backward();
    residency.end_pass();
  } catch (const std::exception& error) {
    state.fail_pass(error.what());
    throw;
  }
  state.micro_step++;
}

StepResult Engine::step() {
  detail::EngineState& state = *state_;
  state.rethrow_deferred();
  if (state.micro_step < state.model.options.accumulation_steps)
    return {.stepped = false, .skipped = false, .lr = state.rate(), .clip = {}};
  const detail::EngineCall call(state, Trace::Row::Optimizer, "step");
  if (state.model.residency->in_pass()) state.model.residency->end_pass();  // a forward without backward
  const auto& schedule = state.model.options.schedule;
  StepResult result =
      state.model.step(state.rate(), schedule ? schedule->betas_at(state.steps) : std::nullopt);
  state.micro_step = 0;
  (result.skipped ? state.skipped_steps : state.steps)++;
  return result;
}

bool Engine::at_boundary() const { return state_->at_boundary(); }

void Engine::set_learning_rate(double lr) {
  require(!state_->model.options.schedule, ErrorKind::Usage, "set_learning_rate",
          "the engine has a schedule");
  require(lr >= 0, ErrorKind::Config, "lr", "expected >= 0, got " + std::to_string(lr));
  state_->base_rate = lr;
}
double Engine::learning_rate() const { return state_->rate(); }

at::Tensor Engine::full_parameter(const std::string& name) {
  const auto place = state_->model.place_of(name);
  const detail::Unit& unit = state_->model.units[static_cast<size_t>(place.unit)];
  return state_->model.gather(place, unit.values(0, unit.layout.shard_numel));
}

at::Tensor Engine::full_gradient(const std::string& name) {
  detail::ShardedModel& model = state_->model;
  const auto place = model.place_of(name);
  require(model.layout(place.unit).trainable, ErrorKind::Usage, name,
          "the parameter is frozen: it has no gradient");
  require(state_->micro_step >= model.options.accumulation_steps, ErrorKind::Usage, name,
          "gradients are there between the last backward() and step()");
  return model.gather(place, model.gradients->shard_gradient(place.unit)).mul_(model.gradient_scale());
}

at::Tensor Engine::full_optimizer_state(const std::string& name, const std::string& kind) {
  detail::ShardedModel& model = state_->model;
  const auto place = model.place_of(name);
  for (const OptimizerState& part : model.optimizer->state())
    if (part.name == kind && model.trainable[static_cast<size_t>(part.shard)] == place.unit)
      return model.gather(place, part.values);
  fail(ErrorKind::Usage, name, "it has no optimizer state '" + kind + "'");
}

std::vector<std::string> Engine::parameter_names() const { return state_->model.names(); }

std::filesystem::path Engine::save(const std::filesystem::path& directory, const std::string& metadata,
                                   int keep_last, const std::string& frozen_from) {
  return detail::save(*state_, directory, {metadata, keep_last, frozen_from});
}
void Engine::begin_save(const std::filesystem::path& directory, const std::string& metadata, int keep_last,
                        const std::string& frozen_from) {
  detail::begin_save(*state_, directory, {metadata, keep_last, frozen_from});
}
std::optional<std::filesystem::path> Engine::finish_save(bool wait) {
  return detail::finish_save(*state_, wait);
}
bool Engine::is_saving() const { return state_->saving != nullptr; }
std::string Engine::load(const std::filesystem::path& checkpoint) {
  return detail::load(*state_, checkpoint);
}

const Plan& Engine::plan() const { return state_->model.plan; }
const Mesh& Engine::mesh() const { return state_->model.mesh; }

EngineStats Engine::stats() const {
  const detail::ResidencyCounters& slabs = state_->model.residency->counters();
  const detail::GradientCounters& gradients = state_->model.gradients->counters();
  return {.steps = state_->steps,
          .skipped_steps = state_->skipped_steps,
          .all_gathers = slabs.gathers,
          .all_gather_elements = slabs.gathered_elements,
          .reduce_scatters = gradients.buckets,
          .reduce_scatter_elements = gradients.reduce_scatter_elements,
          .all_reduce_elements = gradients.all_reduce_elements,
          .resident_bytes = slabs.resident_bytes,
          .peak_resident_bytes = slabs.peak_resident_bytes,
          .waited_s = state_->waited_s,
          .loaded_bytes = state_->loaded_bytes};
}

std::vector<std::string> Engine::schedule() const {
  std::vector<std::string> names;
  for (int unit : state_->model.residency->policy().schedule(ResidencyPolicy::Pass::Train))
    names.push_back(state_->model.layout(unit).name);
  return names;
}

}  // namespace zero
