#include "recompute/saved_tensor_hooks.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace zero::detail {
namespace {

using torch::autograd::Engine;

thread_local SavedTensorHooks* hooks_of_thread = nullptr;

/// The default engine of before, with hooks.
struct EngineWithHooks final : Engine {
  explicit EngineWithHooks(Engine& engine) : before(engine) {}

  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return before.execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task, std::shared_ptr<torch::autograd::Node> root,
      torch::autograd::InputBuffer&& buffer) override {
    return before.execute_with_graph_task(task, std::move(root), std::move(buffer));
  }
  std::unique_ptr<torch::autograd::AnomalyMetadata> make_anomaly_metadata() override {
    return before.make_anomaly_metadata();
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return hooks_of_thread != nullptr ? hooks_of_thread->make() : before.get_default_saved_variable_hooks();
  }

  Engine& before;
};

/// Lives as long as the process, as LibTorch's own does.
Engine& engine_with_hooks() {
  static auto* const engine = new EngineWithHooks(Engine::get_default_engine());
  return *engine;
}

void install_engine() {
  static const bool once = [] {
    engine_with_hooks();
    torch::autograd::set_default_engine_stub(&engine_with_hooks);
    return true;
  }();
  (void)once;
}

}  // namespace

SavedTensorHooksScope::SavedTensorHooksScope(SavedTensorHooks& hooks)
    : previous_((install_engine(), std::exchange(hooks_of_thread, &hooks))) {}

SavedTensorHooksScope::~SavedTensorHooksScope() { hooks_of_thread = previous_; }

}  // namespace zero::detail
