#pragma once
// Operators of other stages: their results' shapes, without their work.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <string>

namespace zero::detail {

/// Computes results of operators from the shapes of their arguments. Operators that are composed of others
/// (LibTorch's linear layers, losses, attention) are taken apart: while compute() runs such a one, what it
/// calls must come back to compute() or, where it reads no hollow tensor, be run. One thread.
class Shapes {
 public:
  /// On: random operators draw their numbers, so that generators move as if they had been computed.
  bool draws = false;
  /// Since they were last cleared.
  bool met_random = false;
  double cost = 0;  // operations, roughly

  /// Replaces the arguments by hollow results; what is written is returned as it came. `place`: of the
  /// operator that the module called, for errors. Throws Unsupported for what depends on values.
  void compute(const c10::OperatorHandle& op, torch::jit::Stack& stack, const std::string& place);

 private:
  void compute_basic(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t base,
                     const std::string& place);
  torch::jit::Stack results_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
  torch::jit::Stack measured(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);

  std::map<std::string, torch::jit::Stack> measured_;  // by operator, shapes and constants: on meta
};

/// Shapes for operators that LibTorch has no shape function of in C++: results on the meta device, from
/// arguments on it; false: no rule.
bool shapes_by_rule(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
                    torch::jit::Stack& results);

/// Operations of one call, roughly: of products by their sizes, of others their elements.
double cost_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments,
               const torch::jit::Stack& results);

}  // namespace zero::detail
