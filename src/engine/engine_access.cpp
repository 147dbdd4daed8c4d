#include "engine/engine_access.h"

#include <optional>
#include <utility>

#include "autograd/tied_gradients.h"
#include "compute/memory_purpose.h"
#include "operators/cpu_operators.h"
#include "seam/wide_operators.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

// A round of the gradients that is not the step's last sends nothing where they are partial.
template <class Work>
void in_round(EngineState& state, bool is_last, Work work) {
  state.begin_call();
  require(state.micro_step == 0, ErrorKind::Usage, "backward", "the gradients of this step are reduced",
          "call step() first");
  const EngineCall call(state, Trace::Row::Compute, is_last ? "reduction" : "backward");
  const DefaultPurposeScope purpose(MemoryPurpose::Activations);
  state.open_pass();
  if (is_last && state.model.plan.step_in_backward)
    state.model.begin_backward(/*boundary=*/true, state.rate(), state.betas());
  else
    state.model.gradients->begin_backward(is_last);
  try {
    work();
    const OwnWork own;
    state.model.end_backward();
    state.model.residency->trim();
  } catch (const std::exception& error) {
    state.fail_pass(error.what());
    throw;
  }
}

}  // namespace

std::unique_ptr<Engine> EngineAccess::make(ModelParameters parameters, const OptimizerSpec& optimizer,
                                           const EngineOptions& options, const Mesh& mesh) {
  return std::unique_ptr<Engine>(
      new Engine(std::make_unique<EngineState>(std::move(parameters), optimizer, options, mesh)));
}

double EngineAccess::scale_losses(Engine& engine) {
  EngineState& state = *engine.state_;
  if (state.scaler) state.model.loss_scale = state.scaler->scale();
  return state.model.loss_scale;
}

RemadeFrom EngineAccess::remade_from(const Engine& engine) {
  const EngineState& state = *engine.state_;
  require(!state.takes_gradient, ErrorKind::Usage, "move_states", "the engine is part of a pipeline",
          "say where its states are when it is made");
  return {.parameters = state.parameters,
          .optimizer = state.optimizer,
          .mesh = state.model.mesh,
          .base_rate = state.base_rate,
          .waited_s = state.waited_s};
}

void EngineAccess::remake(Engine& engine, const EngineOptions& options, const RemadeFrom& from) {
  engine.state_.reset();
  engine.state_ = std::make_unique<EngineState>(from.parameters, from.optimizer, options, from.mesh);
  engine.state_->base_rate = from.base_rate;
  engine.state_->waited_s = from.waited_s;
}

void EngineAccess::accumulate(Engine& engine, const std::vector<at::Tensor>& outputs,
                              const std::function<void()>& backward) {
  EngineState& state = *engine.state_;
  in_round(state, /*is_last=*/false, [&] {
    if (state.model.options.row_gradients) prepare_tied_gradients(outputs);
    if (state.model.plan.cpu_operators) prepare_cpu_operators(outputs);
    const InterceptOperators intercept(nullptr, cpu_operators(state.model.plan.cpu_operators));
    std::optional<WideOperators> wide;
    if (!state.model.options.fp32_parameters.empty()) wide.emplace(/*always=*/false);
    state.in_backward = true;
    backward();
    state.in_backward = false;
  });
}

void EngineAccess::finish(Engine& engine, const std::vector<std::pair<int, at::Tensor>>& from_elsewhere) {
  EngineState& state = *engine.state_;
  in_round(state, /*is_last=*/true, [&] {
    const OwnWork own;
    for (const auto& [parameter, gradient] : from_elsewhere) state.model.on_gradient(parameter, gradient);
  });
  state.micro_step = state.model.plan.accumulation_steps;
}

}  // namespace zero::detail
