#include "optim/fused_operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <vector>

#include "base/plugin.h"
#include "optim/cuda/plugin.h"
#include "optim/kernel_passes.h"

namespace zero::fused_operators {
namespace {

using Parameter = std::optional<at::Tensor>;

ShardSegment whole(const at::Tensor& flat) {
  ShardSegment segment;
  segment.end = flat.numel();
  return segment;
}

void update_on_cpu(int64_t rule, at::Tensor master, const at::Tensor& gradient, Parameter parameter,
                   at::TensorList states, c10::string_view scalars) {
  const RuleMemory memory = memory_of(master, gradient, parameter, states);
  with_rule(rule, [&](const auto& known) {
    using Rule = std::decay_t<decltype(known)>;
    using Scalars = typename kernels::Arithmetic<Rule>::Scalars;
    kernel_passes::update<Rule>(memory, whole(master), scalars_of<Scalars>(scalars));
  });
}

at::Tensor direction_on_cpu(int64_t rule, const at::Tensor& master, const at::Tensor& gradient,
                            const Parameter& parameter, at::TensorList states, c10::string_view scalars) {
  const RuleMemory memory = memory_of(master, gradient, parameter, states);
  at::Tensor partials;
  with_rule(rule, [&](const auto& known) {
    using Rule = std::decay_t<decltype(known)>;
    using Arithmetic = kernels::Arithmetic<Rule>;
    if constexpr (Arithmetic::kSums > 0)
      partials = kernel_passes::direction_partials<Rule>(memory, 0, master.numel(),
                                                         scalars_of<typename Arithmetic::Scalars>(scalars));
  });
  TORCH_CHECK(partials.defined(), "zero::rule_direction: rule number ", rule, " has no sums");
  return partials;
}

at::Tensor sums_of_squares_on_cpu(const at::Tensor& values) { return kernel_passes::sums_of_squares(values); }

// Shapes only, for simulations.
at::Tensor direction_on_meta(int64_t rule, const at::Tensor& master, const at::Tensor&, const Parameter&,
                             at::TensorList, c10::string_view) {
  int64_t sums = 0;
  with_rule(rule,
            [&](const auto& known) { sums = kernels::Arithmetic<std::decay_t<decltype(known)>>::kSums; });
  return at::empty({kernel_passes::blocks_of(master.numel()), sums}, master.options().dtype(at::kDouble));
}

at::Tensor sums_of_squares_on_meta(const at::Tensor& values) {
  return at::empty({kernel_passes::blocks_of(values.numel())}, values.options().dtype(at::kDouble));
}

// Defined when they are first needed, for as long as the process lives: the dispatcher has no other scope.
struct Operators {
  Operators() : library(torch::Library::DEF, "zero", std::nullopt, __FILE__, __LINE__) {
    library.def(
        "rule_update(int rule, Tensor(a!) master, Tensor gradient, Tensor(b!)? parameter, "
        "Tensor(c!)[] states, str scalars) -> ()");
    library.def(
        "rule_direction(int rule, Tensor master, Tensor gradient, Tensor? parameter, "
        "Tensor(a!)[] states, str scalars) -> Tensor");
    library.def("sums_of_squares(Tensor values) -> Tensor");
    library.impl("rule_update", c10::DispatchKey::CPU, TORCH_FN(update_on_cpu));
    library.impl("rule_direction", c10::DispatchKey::CPU, TORCH_FN(direction_on_cpu));
    library.impl("sums_of_squares", c10::DispatchKey::CPU, TORCH_FN(sums_of_squares_on_cpu));
    library.impl("rule_direction", c10::DispatchKey::Meta, TORCH_FN(direction_on_meta));
    library.impl("sums_of_squares", c10::DispatchKey::Meta, TORCH_FN(sums_of_squares_on_meta));
    const auto find = [](const char* name) {
      return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
    };
    update = find("zero::rule_update").typed<decltype(update_on_cpu)>();
    direction = find("zero::rule_direction").typed<decltype(direction_on_cpu)>();
    squares = find("zero::sums_of_squares").typed<decltype(sums_of_squares_on_cpu)>();
  }

  torch::Library library;
  std::optional<c10::TypedOperatorHandle<decltype(update_on_cpu)>> update;
  std::optional<c10::TypedOperatorHandle<decltype(direction_on_cpu)>> direction;
  std::optional<c10::TypedOperatorHandle<decltype(sums_of_squares_on_cpu)>> squares;
};

const Operators& operators() {
  static const Operators all;
  return all;
}

bool load_cuda() {
  static const detail::PluginFunction loaded =
      detail::load_plugin(kCudaPlugin, kCudaRegister, detail::PluginScope::Shared);
  if (!loaded.function) return false;
  static const bool registered = (reinterpret_cast<CudaRegister*>(loaded.function)(), true);
  return registered;
}

// A part of a segment's tensors, as views.
struct Views {
  Views(const RuleMemory& memory, int64_t begin, int64_t end)
      : master(memory.master.slice(0, begin, end)), gradient(memory.gradient.slice(0, begin, end)) {
    if (memory.parameter.defined()) parameter = memory.parameter.slice(0, begin, end);
    for (const at::Tensor& state : memory.states) states.push_back(state.slice(0, begin, end));
  }
  at::Tensor master, gradient;
  Parameter parameter;
  std::vector<at::Tensor> states;
};

}  // namespace

RuleMemory memory_of(const at::Tensor& master, const at::Tensor& gradient,
                     const std::optional<at::Tensor>& parameter, at::TensorList states) {
  RuleMemory memory;
  memory.master = master;
  memory.gradient = gradient;
  memory.parameter = parameter.value_or(at::Tensor());
  memory.states = states.vec();
  return memory;
}

bool exist_for(c10::Device device) {
  operators();
  if (device.is_cuda()) return load_cuda();
  const c10::DispatchKey key = c10::computeDispatchKey(std::nullopt, std::nullopt, device);
  return device.is_cpu() || c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key);
}

void update(int64_t rule, const RuleMemory& memory, const ShardSegment& segment, std::string_view scalars) {
  const Views of(memory, segment.begin, segment.end);
  operators().update->call(rule, of.master, of.gradient, of.parameter, of.states, scalars);
}

at::Tensor direction(int64_t rule, const RuleMemory& memory, int64_t begin, int64_t end,
                     std::string_view scalars) {
  const Views of(memory, begin, end);
  return operators().direction->call(rule, of.master, of.gradient, of.parameter, of.states, scalars);
}

at::Tensor sums_of_squares(const at::Tensor& values) { return operators().squares->call(values); }

}  // namespace zero::fused_operators
