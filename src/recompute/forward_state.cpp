#include "recompute/forward_state.h"

#include <ATen/Context.h>
#include <torch/csrc/jit/runtime/graph_executor.h>

#include <algorithm>
#include <mutex>
#include <optional>

namespace zero::detail {
namespace {

bool intercepts_now() { return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Fake); }

}  // namespace

ForwardState::ForwardState(const std::vector<at::Device>& devices, bool random)
    : autocasts_{autocast_now(at::kCPU)},
      autocast_caches_(at::autocast::is_autocast_cache_enabled()),
      optimises_graphs_(torch::jit::getGraphExecutorOptimize()),
      is_intercepted_(intercepts_now()),
      kernels_(current_kernels()),
      contexts_(forward_contexts()) {
  for (const at::Device device : devices)
    if (std::none_of(autocasts_.begin(), autocasts_.end(),
                     [&](const Autocast& known) { return known.device == device.type(); }))
      autocasts_.push_back(autocast_now(device.type()));
  if (!random) return;
  const auto add = [&](at::Device device) {
    const at::Generator& generator = at::globalContext().defaultGenerator(device);
    random_states_.emplace_back(generator, state_of(generator));
  };
  add(at::kCPU);
  for (const at::Device device : devices) add(device);
}

ForwardState::Autocast ForwardState::autocast_now(at::DeviceType device) {
  return {.device = device,
          .is_on = at::autocast::is_autocast_enabled(device),
          .dtype = at::autocast::get_autocast_dtype(device)};
}

void ForwardState::set(const std::vector<Autocast>& autocasts, bool caches) {
  for (const Autocast& autocast : autocasts) {
    at::autocast::set_autocast_enabled(autocast.device, autocast.is_on);
    at::autocast::set_autocast_dtype(autocast.device, autocast.dtype);
  }
  at::autocast::set_autocast_cache_enabled(caches);
}

at::Tensor ForwardState::state_of(at::Generator generator) {
  const OwnWork own;
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void ForwardState::set(const RandomStates& states) {
  const OwnWork own;
  for (auto [generator, state] : states) {
    const std::lock_guard lock(generator.mutex());
    generator.set_state(state);
  }
}

struct ForwardState::Scope::Before {
  std::vector<Autocast> autocasts;
  bool autocast_caches = true;
  RandomStates random_states;
  std::optional<torch::jit::GraphOptimizerEnabledGuard> optimiser;
  std::optional<InterceptOperators> intercept;
  std::vector<std::shared_ptr<void>> contexts;
};

ForwardState::Scope::Scope(const ForwardState& state) : before_(std::make_unique<Before>()) {
  before_->autocast_caches = at::autocast::is_autocast_cache_enabled();
  for (const Autocast& autocast : state.autocasts_)
    before_->autocasts.push_back(autocast_now(autocast.device));
  for (const auto& [generator, then] : state.random_states_)
    before_->random_states.emplace_back(generator, state_of(generator));
  before_->optimiser.emplace(state.optimises_graphs_);
  // A backward of an engine intercepts operators itself.
  if (state.is_intercepted_ && !intercepts_now()) before_->intercept.emplace(nullptr, state.kernels_);
  ForwardState::set(state.autocasts_, state.autocast_caches_);
  ForwardState::set(state.random_states_);
  for (const std::shared_ptr<const ForwardContext>& context : state.contexts_)
    before_->contexts.push_back(context->enter());
}

ForwardState::Scope::~Scope() {
  while (!before_->contexts.empty()) before_->contexts.pop_back();
  ForwardState::set(before_->random_states);
  ForwardState::set(before_->autocasts, before_->autocast_caches);
}

}  // namespace zero::detail
