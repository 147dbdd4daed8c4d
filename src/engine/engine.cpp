#include "zero/engine.h"

#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/tied_gradients.h"
#include "compute/memory_purpose.h"
#include "engine/engine_state.h"
#include "operators/cpu_operators.h"
#include "seam/autocast.h"
#include "seam/wide_operators.h"
#include "tiers/disk_states.h"
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
    EngineState* state = link_->state;
    if (state == nullptr) return;
    // Another engine's backward passes through here on its way: what it leaves is none of our business.
    const bool is_in_another_engine = c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Fake);
    BypassIntercept bypass;
    c10::NoGradGuard no_grad;
    at::Tensor gradient = std::exchange(variable.mutable_grad(), at::Tensor());
    if (state->in_backward) {
      if (state->takes_gradient && state->takes_gradient(parameter_, gradient)) return;
      return state->model.on_gradient(parameter_, gradient);
    }
    require(is_in_another_engine && !state->in_forward, ErrorKind::Usage, state->model.names()[parameter_],
            "its gradient comes from a backward that the engine knows nothing of",
            "call engine.backward(loss) in place of loss.backward()");
  }

 private:
  std::shared_ptr<HookLink> link_;
  int parameter_;
};

// Backwards are the engine's, so their losses are scaled by it.
void refuse_fp16_training(const ModuleSpec& module, std::optional<DtypeOption> dtype) {
  for (const ParameterSpec& parameter : module.parameters) {
    const bool is_fp16 =
        dtype && is_floating(parameter.dtype) ? *dtype == Dtype::f16 : parameter.dtype == Dtype::f16;
    require(!parameter.trainable || !is_fp16, ErrorKind::Unsupported, parameter.name,
            "training in fp16 needs loss scaling: small gradients would be lost",
            "set EngineOptions::loss_scaling, train in bf16 (EngineOptions::dtype), or freeze the parameter");
  }
  for (const ModuleSpec& child : module.children) refuse_fp16_training(child, dtype);
}

ModelParameters checked(ModelParameters parameters, const EngineOptions& options) {
  if (options.loss_scaling)
    validate(*options.loss_scaling);
  else
    refuse_fp16_training(parameters.spec, options.dtype);
  return parameters;
}

// What backward begins with: `gradients` (ones where there are none) times the scale.
std::vector<at::Tensor> scaled_gradients(const std::vector<at::Tensor>& outputs,
                                         const std::vector<at::Tensor>& gradients, double scale) {
  if (scale == 1) return gradients;
  std::vector<at::Tensor> scaled;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool is_given = i < gradients.size() && gradients[i].defined();
    require(is_given || outputs[i].numel() == 1, ErrorKind::Usage, "backward",
            "an output of several elements has no gradient", "give one for each such output");
    scaled.push_back(is_given ? gradients[i] * scale : at::full_like(outputs[i], scale));
  }
  return scaled;
}

}  // namespace

EngineState::EngineState(ModelParameters given, const OptimizerSpec& spec, const EngineOptions& options,
                         Mesh mesh)
    : parameters(checked(std::move(given), options)),
      optimizer(spec),
      model(parameters, optimizer, options, std::move(mesh)),
      watch(model),
      base_rate(base_lr(optimizer)),
      link(std::make_shared<HookLink>(HookLink{this})) {
  if (options.loss_scaling) scaler.emplace(*options.loss_scaling);
  for (int i = 0; i < model.parameter_count(); ++i)
    for (const at::Tensor& tensor : model.tensors_of(i))
      if (tensor.requires_grad())
        torch::autograd::impl::set_post_acc_grad_hooks(tensor, std::make_unique<GradientHook>(link, i));
}

EngineState::~EngineState() { link->state = nullptr; }

void EngineState::require_step_not_due() const {
  require(micro_step < model.plan.accumulation_steps, ErrorKind::Usage, "backward",
          "all " + std::to_string(model.plan.accumulation_steps) + " micro-batches of this step are done",
          "call step() first");
}

void EngineState::require_between_steps(const char* call, const char* remedy) const {
  require(micro_step == 0, ErrorKind::Usage, call, "called between backward() and step()", remedy);
}

void EngineState::require_ready_to_save() {
  begin_call();
  require_between_steps("save", "save after step()");
  settle();
  require(!saving, ErrorKind::Usage, "save", "another save is under way", "call finish_save() first");
  if (scaler) counts.loss_scale = scaler->state();
}

void EngineState::begin_call() {
  if (deferred) std::rethrow_exception(std::exchange(deferred, nullptr));
  model.require_whole();
  watch.require_views();
}

void EngineState::fail_pass(const char* reason) noexcept {
  in_backward = false;
  model.mesh.report_failure(reason);
  try {
    model.abandon_backward();
    forget_losses();
    model.residency->abandon_passes();
  } catch (...) {
    // The first error is the one to report; this pass is over either way.
  }
}

void EngineState::open_pass() {
  if (!model.residency->in_pass(ResidencyPolicy::Pass::Train))
    model.residency->begin_pass(ResidencyPolicy::Pass::Train);
}

void EngineState::forget_losses() {
  micro_step = 0;
  weight.reset();
  model.forget_weight();
}

void EngineState::count_last_step() {
  const std::optional<StepResult> step = std::exchange(uncounted, std::nullopt);
  if (!step) return;
  const bool skipped = step->skipped();
  (skipped ? counts.skipped_steps : counts.steps)++;
  if (scaler) scaler->update(skipped);
}

void EngineState::settle() {
  count_last_step();
  model.settle();
}

double EngineState::rate() {
  count_last_step();
  return model.options.schedule ? model.options.schedule->lr_at(counts.steps, base_rate) : base_rate;
}

std::optional<Betas> EngineState::betas() {
  count_last_step();
  const auto& schedule = model.options.schedule;
  return schedule ? schedule->betas_at(counts.steps) : std::nullopt;
}

// On devices the host does not know yet how many steps there were.
void EngineState::begin_backward() {
  if (!model.plan.step_in_backward) return model.gradients->begin_backward(at_boundary());
  model.begin_backward(at_boundary(), rate(), betas());
}

struct ForwardScope::Guards {
  explicit Guards(EngineState& state) : call(state, Trace::Row::Compute, "forward") {}
  EngineCall call;
  DefaultPurposeScope purpose{MemoryPurpose::Activations};
  std::optional<InterceptOperators> intercept;
  // TorchScript's optimised graphs may run fused kernels that read storages without the dispatcher.
  torch::jit::GraphOptimizerEnabledGuard plain_graphs{false};
  std::optional<WideOperators> wide;
  std::optional<AutocastScope> autocast;
  std::shared_ptr<void> around;
  bool evaluates = false;  // this scope opened an evaluation's pass
};

ForwardScope::ForwardScope(EngineState& state) : state_(state) {
  state.begin_call();
  state.model.require_one_step("forward");
  Residency& residency = *state.model.residency;
  auto guards = std::make_unique<Guards>(state);
  if (!residency.in_pass(ResidencyPolicy::Pass::Evaluate)) {
    guards->evaluates = !c10::GradMode::is_enabled();
    if (guards->evaluates)
      residency.begin_pass(ResidencyPolicy::Pass::Evaluate);
    else
      state.open_pass();
  }
  guards->intercept.emplace(nullptr, cpu_operators(state.model.plan.cpu_operators));
  if (!state.model.options.fp32_parameters.empty()) guards->wide.emplace(/*always=*/true);
  if (const auto dtype = state.model.options.autocast)
    guards->autocast.emplace(state.model.mesh.device().type(), scalar_type_of(*dtype));
  if (state.model.options.around_forward) guards->around = state.model.options.around_forward();
  state.in_forward = true;
  guards_ = std::move(guards);
}

void ForwardScope::failed(const char* reason) noexcept {
  guards_.reset();
  state_.in_forward = false;
  state_.fail_pass(reason);
}

ForwardScope::~ForwardScope() {
  if (!guards_) return;
  guards_->autocast.reset();
  guards_->wide.reset();
  guards_->intercept.reset();
  state_.in_forward = false;
  try {
    if (guards_->evaluates)
      state_.model.residency->end_pass();
    else
      state_.model.residency->trim();
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

Engine::Engine(std::unique_ptr<detail::EngineState> state) : state_(std::move(state)) {}

Engine::~Engine() = default;

void Engine::backward(const at::Tensor& loss) {
  require(loss.defined() && loss.numel() == 1, ErrorKind::Usage, "backward", "expected a scalar loss",
          "give outputs and their gradients instead");
  backward(std::vector<at::Tensor>{loss}, {});
}

void Engine::backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients) {
  state_->begin_call();
  state_->require_step_not_due();
  require(!state_->weight, ErrorKind::Usage, "backward", "this step has losses that are sums",
          "call backward_sum() for all losses of a step, or for none");
  state_->backward(outputs, gradients, 1);
}

void Engine::backward_sum(const at::Tensor& loss_sum, double weight) {
  detail::EngineState& state = *state_;
  state.begin_call();
  state.require_step_not_due();
  require(loss_sum.defined() && loss_sum.numel() == 1, ErrorKind::Usage, "backward_sum",
          "expected a scalar loss");
  require(std::isfinite(weight) && weight >= 0, ErrorKind::Usage, "backward_sum",
          "weight is " + std::to_string(weight) + ", expected a finite number >= 0");
  require(state.weight.has_value() || state.micro_step == 0, ErrorKind::Usage, "backward_sum",
          "this step has losses that are means", "call backward_sum() for all losses of a step, or for none");
  const double sum = state.weight.value_or(0) + weight;
  // Where units are updated in backward it must be known by then; elsewhere nobody waits for it there.
  const bool is_early = state.model.plan.step_in_backward && state.at_boundary();
  if (is_early) state.model.set_weight(sum);
  state.backward({loss_sum}, {}, weight > 0 ? 1 : 0);
  state.weight = sum;
  if (!is_early && state.micro_step == state.model.plan.accumulation_steps) state.model.set_weight(sum);
}

void detail::EngineState::backward(const std::vector<at::Tensor>& outputs,
                                   const std::vector<at::Tensor>& gradients, double factor) {
  const EngineCall call(*this, Trace::Row::Compute, "backward");
  const DefaultPurposeScope purpose(MemoryPurpose::Activations);
  for (const at::Tensor& output : outputs)
    require(output.defined() && output.requires_grad(), ErrorKind::Usage, "backward",
            "an output needs no gradient",
            "compute it inside engine.forward() from trainable parameters, without NoGradGuard");
  if (scaler) model.loss_scale = scaler->scale();
  const std::vector<at::Tensor> from = scaled_gradients(outputs, gradients, model.loss_scale * factor);
  open_pass();
  try {
    begin_backward();
    if (model.options.row_gradients) prepare_tied_gradients(outputs);
    if (model.plan.cpu_operators) prepare_cpu_operators(outputs);
    {
      InterceptOperators intercept(nullptr, cpu_operators(model.plan.cpu_operators));
      std::optional<WideOperators> wide;
      if (!model.options.fp32_parameters.empty()) wide.emplace(/*always=*/false);
      in_backward = true;
      torch::autograd::backward(outputs, from);
      in_backward = false;
    }
    BypassIntercept bypass;
    c10::NoGradGuard no_grad;
    model.end_backward();
    model.residency->trim();
  } catch (const std::exception& error) {
    fail_pass(error.what());
    throw;
  }
  micro_step++;
}

StepResult Engine::step() {
  detail::EngineState& state = *state_;
  state.begin_call();
  if (state.micro_step < state.model.plan.accumulation_steps) return {state.rate(), nullptr};
  const detail::EngineCall call(state, Trace::Row::Optimizer, "step");
  if (state.model.residency->in_pass(ResidencyPolicy::Pass::Train)) state.model.residency->end_pass();
  const double rate = state.rate();
  StepResult result = state.model.step(rate, state.betas());
  result.loss_scale = state.model.loss_scale;
  state.forget_losses();
  state.uncounted = result;
  if (state.scaler) state.count_last_step();  // the next losses need to know
  return result;
}

void Engine::abandon_pass() {
  state_->begin_call();
  state_->model.abandon_backward();
  state_->forget_losses();
  state_->model.residency->abandon_passes();
  state_->model.require_whole();
}

bool Engine::at_boundary() const { return state_->at_boundary(); }

void Engine::set_learning_rate(double lr) {
  require(!state_->model.options.schedule, ErrorKind::Usage, "set_learning_rate",
          "the engine has a schedule");
  require(lr >= 0, ErrorKind::Config, "lr", "expected >= 0, got " + std::to_string(lr));
  require(!state_->model.is_bound(), ErrorKind::Usage, "set_learning_rate",
          "units were updated in backward with the rate that there was", "set it before backward()");
  state_->base_rate = lr;
}
double Engine::learning_rate() const { return state_->rate(); }

std::vector<std::string> Engine::parameter_names() const { return state_->model.names(); }

std::vector<ParameterSummary> Engine::parameter_summary() const {
  const detail::ShardedModel& model = state_->model;
  return summarise_parameters(model.plan, model.options, model.rule, state_->base_rate);
}

std::filesystem::path Engine::save(const std::filesystem::path& directory, const std::string& metadata,
                                   int keep_last, const std::string& frozen_from) {
  state_->require_ready_to_save();
  return detail::save(state_->model, state_->counts, directory, {metadata, keep_last, frozen_from});
}
void Engine::begin_save(const std::filesystem::path& directory, const std::string& metadata, int keep_last,
                        const std::string& frozen_from) {
  state_->require_ready_to_save();
  state_->saving = detail::begin_save(state_->model, state_->counts, directory,
                                      {metadata, keep_last, frozen_from}, /*in_background=*/true);
}
std::optional<std::filesystem::path> Engine::finish_save(bool wait) {
  return detail::finish_save(state_->model, state_->saving, wait);
}
bool Engine::is_saving() const { return state_->saving != nullptr; }
std::string Engine::load(const std::filesystem::path& checkpoint) {
  state_->begin_call();
  state_->require_between_steps("load", "load before the first forward()");
  state_->settle();
  detail::Loaded loaded = detail::load(state_->model, checkpoint);
  state_->counts = loaded.counts;
  if (state_->scaler && loaded.counts.loss_scale) state_->scaler->set_state(*loaded.counts.loss_scale);
  state_->loaded_bytes += loaded.bytes;
  return loaded.metadata;
}

const Plan& Engine::plan() const { return state_->model.plan; }
const Mesh& Engine::mesh() const { return state_->model.mesh; }

namespace {

DiskStats disk_stats(const tiers::DiskStates* disk, int64_t pieces_ahead) {
  if (disk == nullptr) return {};
  const tiers::DiskFileStats moved = disk->file().stats();
  return {.transport = disk->file().description(),
          .ring_bytes = disk->ring_bytes(),
          .read_bytes = moved.read_bytes,
          .written_bytes = moved.written_bytes,
          .busy_s = moved.busy_s,
          .pieces_ahead = pieces_ahead};
}

}  // namespace

EngineStats Engine::stats() const {
  state_->count_last_step();
  const detail::ResidencyCounters& slabs = state_->model.residency->counters();
  const detail::GradientCounters gradients = state_->model.gradients->counters();
  return {.steps = state_->counts.steps,
          .skipped_steps = state_->counts.skipped_steps,
          .all_gathers = slabs.gathers,
          .all_gather_elements = slabs.gathered_elements,
          .awaited_all_gathers = slabs.awaited_gathers,
          .recorded_schedules = state_->model.residency->policy().recordings(ResidencyPolicy::Pass::Train),
          .reduce_scatters = gradients.buckets,
          .reduce_scatter_elements = gradients.reduce_scatter_elements,
          .all_reduce_elements = gradients.all_reduce_elements,
          .resident_bytes = slabs.resident_bytes,
          .peak_resident_bytes = slabs.peak_resident_bytes,
          .network_bytes =
              state_->model.shard_group.network_bytes() + state_->model.replica_group.network_bytes(),
          .waited_s = state_->waited_s,
          .loaded_bytes = state_->loaded_bytes,
          .disk = disk_stats(state_->model.states.disk(), state_->model.pieces_ahead())};
}

std::vector<std::string> Engine::schedule() const {
  std::vector<std::string> names;
  for (int unit : state_->model.residency->policy().schedule(ResidencyPolicy::Pass::Train))
    names.push_back(state_->model.layout(unit).name);
  return names;
}

}  // namespace zero
