#pragma once
// What an engine is made of. The public class is a thin front of it.

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "saving/saving.h"
#include "sharding/parameter_watch.h"
#include "sharding/sharded_model.h"
#include "zero/engine.h"

namespace zero::detail {

/// Lets a parameter's hook find the engine, and notice that it is gone.
struct HookLink {
  EngineState* state;
};

struct EngineState {
  EngineState(ModelParameters parameters, const OptimizerSpec& optimizer, const EngineOptions& options,
              Mesh mesh);
  ~EngineState();
  EngineState(const EngineState&) = delete;
  EngineState& operator=(const EngineState&) = delete;

  bool at_boundary() const { return micro_step + 1 >= model.plan.accumulation_steps; }
  void require_step_not_due() const;
  /// Throws Usage, naming `call`, between backward() and step().
  void require_between_steps(const char* call, const char* remedy) const;
  void require_ready_to_save();
  /// Opens the training pass unless it is open: it ends with step().
  void open_pass();
  /// How calls begin: rethrows what a scope's destructor had to keep to itself, and refuses what was written
  /// into parameters and would be lost.
  void begin_call();
  /// Backward, from `gradients` (ones where there are none) times the loss scale and `factor`.
  void backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients,
                double factor);
  /// The step's losses are over, or have never been.
  void forget_losses();
  /// After an error in forward or backward: tells the other ranks, forgets the pass.
  void fail_pass(const char* reason) noexcept;
  /// Takes over what the last step found out: before the next one, and before what it changed is asked for.
  /// Collective.
  void settle();
  /// The same, but for what all ranks must agree on.
  void count_last_step();
  double rate();
  std::optional<Betas> betas();
  /// Of the gradients: a micro-batch's.
  void begin_backward();

  // To be made anew with other options.
  const ModelParameters parameters;
  const OptimizerSpec optimizer;
  ShardedModel model;
  ParameterWatch watch;
  double base_rate;
  int micro_step = 0;  // backwards since the last step
  StepCounts counts;   // but for uncounted
  std::optional<StepResult> uncounted;
  std::optional<LossScaler> scaler;
  std::optional<double> weight;  // of this step's losses so far, where they are sums
  bool in_forward = false, in_backward = false;
  // Takes a parameter's gradient in place of the sums, where it returns true.
  std::function<bool(int parameter, const at::Tensor& gradient)> takes_gradient;
  double waited_s = 0;
  int64_t loaded_bytes = 0;
  std::exception_ptr deferred;
  std::shared_ptr<HookLink> link;
  std::unique_ptr<SaveJob> saving;  // in the background
};

/// One call of the engine's: what it waits for others counts as the engine's, and a trace shows it.
class EngineCall {
 public:
  EngineCall(EngineState& state, Trace::Row row, std::string_view name)
      : state_(state),
        waited_before_s_(state.model.mesh.waited_s()),
        span_(state.model.mesh.trace(), row, name) {}
  ~EngineCall() { state_.waited_s += state_.model.mesh.waited_s() - waited_before_s_; }
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;

 private:
  EngineState& state_;
  double waited_before_s_;
  TraceScope span_;
};

}  // namespace zero::detail
