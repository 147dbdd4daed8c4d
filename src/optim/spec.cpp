// What an optimizer spec means before any tensor is there: checks, base rate, bytes of state.
#include "optim/shard_optimizer.h"
#include "optim/torch_optimizer.h"
#include "zero/error.h"

namespace zero {

std::optional<OptimizerRule> rule_of(const OptimizerSpec& spec) {
  return std::visit(
      []<class Spec>(const Spec& one) -> std::optional<OptimizerRule> {
        if constexpr (std::is_same_v<Spec, TorchOptimizer>) {
          return std::nullopt;
        } else {
          return one;
        }
      },
      spec);
}

std::string_view name_of(const OptimizerSpec& spec) {
  const auto rule = rule_of(spec);
  return rule ? rule_name(*rule) : "TorchOptimizer";
}

void validate(const OptimizerSpec& spec) {
  if (const auto rule = rule_of(spec)) return validate_rule(*rule);
  require(static_cast<bool>(std::get<TorchOptimizer>(spec).make), ErrorKind::Config, "TorchOptimizer",
          "make is empty", "give a function that builds the optimizer from parameter groups");
}

double base_lr(const OptimizerSpec& spec) {
  const auto rule = rule_of(spec);
  return rule ? rule_lr(*rule) : torch_base_lr(std::get<TorchOptimizer>(spec));
}

std::optional<int64_t> optimizer_state_bytes(const OptimizerSpec& spec) {
  const auto rule = rule_of(spec);
  return rule ? rule_state_bytes(*rule) : torch_state_bytes(std::get<TorchOptimizer>(spec));
}

}  // namespace zero
