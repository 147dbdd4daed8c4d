#include "optim/torch_state.h"

#include <ATen/ATen.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

#include "zero/optimizer.h"

namespace zero {
namespace {

namespace to = torch::optim;

struct Slot {
  const char* name;
  at::Tensor* tensor;
};

template <class Options, class State>
std::vector<Slot> adam_slots(const Options& options, State& state) {
  std::vector<Slot> slots{{"exp_avg", &state.exp_avg()}, {"exp_avg_sq", &state.exp_avg_sq()}};
  if (options.amsgrad()) slots.push_back({"max_exp_avg_sq", &state.max_exp_avg_sq()});
  return slots;
}

/// One known type: its options, its state, and which tensors of the state these options use.
struct AdamKind {
  using Optimizer = to::Adam;
  using Options = to::AdamOptions;
  using State = to::AdamParamState;
  static std::vector<Slot> slots(const Options& options, State& state) { return adam_slots(options, state); }
  static double initial(const Options&) { return 0; }
};
struct AdamWKind {
  using Optimizer = to::AdamW;
  using Options = to::AdamWOptions;
  using State = to::AdamWParamState;
  static std::vector<Slot> slots(const Options& options, State& state) { return adam_slots(options, state); }
  static double initial(const Options&) { return 0; }
};
struct SgdKind {
  using Optimizer = to::SGD;
  using Options = to::SGDOptions;
  using State = to::SGDParamState;
  static std::vector<Slot> slots(const Options& options, State& state) {
    if (options.momentum() == 0) return {};
    return {{"momentum_buffer", &state.momentum_buffer()}};
  }
  static double initial(const Options&) { return 0; }
};
struct RmspropKind {
  using Optimizer = to::RMSprop;
  using Options = to::RMSpropOptions;
  using State = to::RMSpropParamState;
  static std::vector<Slot> slots(const Options& options, State& state) {
    std::vector<Slot> slots{{"square_avg", &state.square_avg()}};
    if (options.momentum() > 0) slots.push_back({"momentum_buffer", &state.momentum_buffer()});
    if (options.centered()) slots.push_back({"grad_avg", &state.grad_avg()});
    return slots;
  }
  static double initial(const Options&) { return 0; }
};
struct AdagradKind {
  using Optimizer = to::Adagrad;
  using Options = to::AdagradOptions;
  using State = to::AdagradParamState;
  static std::vector<Slot> slots(const Options&, State& state) { return {{"sum", &state.sum()}}; }
  static double initial(const Options& options) { return options.initial_accumulator_value(); }
};

/// Calls f(kind) if the optimizer is exactly of a known type: a subclass may keep anything, unless it says
/// that it does not.
template <class F>
bool with_kind(const to::Optimizer& optimizer, F f) {
  const bool keeps_base_state = dynamic_cast<const KeepsBaseState*>(&optimizer) != nullptr;
  const auto try_kind = [&](auto kind) {
    using Known = typename decltype(kind)::Optimizer;
    const bool derives = keeps_base_state && dynamic_cast<const Known*>(&optimizer) != nullptr;
    if (!derives && typeid(optimizer) != typeid(Known)) return false;
    f(kind);
    return true;
  };
  return try_kind(AdamKind{}) || try_kind(AdamWKind{}) || try_kind(SgdKind{}) || try_kind(RmspropKind{}) ||
         try_kind(AdagradKind{});
}

template <class Kind>
const typename Kind::Options& options_of(const to::OptimizerParamGroup& group) {
  return static_cast<const typename Kind::Options&>(group.options());
}

template <class Kind>
std::vector<std::string> names_of(const to::OptimizerParamGroup& group) {
  typename Kind::State state;
  std::vector<std::string> names;
  for (const Slot& slot : Kind::slots(options_of<Kind>(group), state)) names.emplace_back(slot.name);
  return names;
}

template <class Options>
bool set_adam_betas(to::OptimizerOptions& options, double beta1, double beta2) {
  auto* const adam = dynamic_cast<Options*>(&options);
  if (adam) adam->betas({beta1, beta2});
  return adam != nullptr;
}

template <class Options>
bool set_decay(to::OptimizerOptions& options, double weight_decay) {
  auto* const known = dynamic_cast<Options*>(&options);
  if (known) known->weight_decay(weight_decay);
  return known != nullptr;
}

}  // namespace

std::optional<std::vector<std::string>> torch_state_names(const to::Optimizer& optimizer) {
  std::optional<std::vector<std::string>> names;
  with_kind(optimizer, [&](auto kind) {
    const auto& groups = optimizer.param_groups();
    names = names_of<decltype(kind)>(groups.front());
    for (const auto& group : groups) {
      if (names_of<decltype(kind)>(group) == *names) continue;
      names.reset();
      return;
    }
  });
  return names;
}

std::string torch_type_name(const to::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

bool set_weight_decay(to::OptimizerOptions& options, double weight_decay) {
  return set_decay<to::AdamOptions>(options, weight_decay) ||
         set_decay<to::AdamWOptions>(options, weight_decay) ||
         set_decay<to::SGDOptions>(options, weight_decay) ||
         set_decay<to::RMSpropOptions>(options, weight_decay) ||
         set_decay<to::AdagradOptions>(options, weight_decay);
}

bool set_betas(to::OptimizerOptions& options, double beta1, double beta2) {
  return set_adam_betas<to::AdamOptions>(options, beta1, beta2) ||
         set_adam_betas<to::AdamWOptions>(options, beta1, beta2);
}

void adopt_state(to::Optimizer& optimizer, const at::Tensor& leaf, const std::vector<at::Tensor>& views) {
  with_kind(optimizer, [&](auto kind) {
    using Kind = decltype(kind);
    const auto found = optimizer.state().find(leaf.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) return;
    auto& state = static_cast<typename Kind::State&>(*found->second);
    const auto slots = Kind::slots(options_of<Kind>(optimizer.param_groups().front()), state);
    for (size_t i = 0; i < slots.size(); ++i) {
      at::Tensor& tensor = *slots[i].tensor;
      if (!tensor.defined() || tensor.const_data_ptr() == views[i].const_data_ptr()) continue;
      at::Tensor(views[i]).copy_(tensor);
      tensor = views[i];
    }
  });
}

void restore_state(to::Optimizer& optimizer, const at::Tensor& leaf, const std::vector<at::Tensor>& views,
                   int64_t steps) {
  with_kind(optimizer, [&](auto kind) {
    using Kind = decltype(kind);
    using State = typename Kind::State;
    const auto& options = options_of<Kind>(optimizer.param_groups().front());
    if (steps == 0) {
      for (const auto& view : views) at::Tensor(view).fill_(Kind::initial(options));
      // Adagrad makes its state when it is built; the others at the first step.
      if constexpr (!std::is_same_v<Kind, AdagradKind>) {
        optimizer.state().erase(leaf.unsafeGetTensorImpl());
        return;
      }
    }
    auto state = std::make_unique<State>();
    const auto slots = Kind::slots(options, *state);
    for (size_t i = 0; i < slots.size(); ++i) *slots[i].tensor = views[i];
    if constexpr (requires { state->step(steps); }) state->step(steps);
    optimizer.state()[leaf.unsafeGetTensorImpl()] = std::move(state);
  });
}

}  // namespace zero
