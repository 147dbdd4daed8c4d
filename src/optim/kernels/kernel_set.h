#pragma once
// All kernels of a vector type V as one set. In an unnamed namespace for the reason that scalar.h gives.

#include "optim/kernels/factored.h"
#include "optim/kernels/passes.h"

namespace zero::kernels {
namespace {

template <class V, class Rule>
constexpr RuleKernels<Rule> rule_kernels() {
  RuleKernels<Rule> kernels{.update = update_pass<V, Arithmetic<Rule>>, .direction = nullptr};
  if constexpr (Arithmetic<Rule>::kSums > 0) kernels.direction = direction_pass<V, Arithmetic<Rule>>;
  return kernels;
}

template <class V, class... Rules>
constexpr std::tuple<RuleKernels<Rules>...> all_rule_kernels(const std::variant<Rules...>*) {
  return {rule_kernels<V, Rules>()...};
}

template <class V>
constexpr KernelSet kernel_set(std::string_view name) {
  return {name,
          all_rule_kernels<V>(static_cast<const OptimizerRule*>(nullptr)),
          sums_of_squares<V>,
          split<V>,
          join<V>,
          widen_halves,
          round_randomly,
          factored_kernels<V>()};
}

}  // namespace
}  // namespace zero::kernels
