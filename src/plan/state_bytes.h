#pragma once
// What the optimizer keeps of a master beside parameters of one type.

#include "zero/dtype.h"
#include "zero/optimizer_rules.h"
#include "zero/plan.h"

namespace zero {

/// Bytes an element; 0 where the parameter is the master itself.
inline int64_t master_bytes_of(const StateBytes& state, Dtype parameter) {
  if (itemsize(parameter) >= 4) return 0;
  return parameter == Dtype::bf16 ? state.bf16_master_bytes : state.master_bytes;
}

/// What a plan needs to know of a rule.
inline OptimizerBytes bytes_of_rule(const OptimizerRule& rule) {
  OptimizerBytes bytes{.states = rule_state_bytes(rule), .by_element = updates_by_element(rule)};
  if (has_8bit_states(rule) || sums_parameters(rule)) bytes.block_numel = kStateBlockNumel;
  bytes.factored = is_factored(rule);
  if (!has_8bit_states(rule)) return bytes;
  bytes.block_bytes = static_cast<int64_t>(rule_state_names(rule).size()) * kRuleStateBytes;
  return bytes;
}

}  // namespace zero
