#pragma once
// Who updates which parameter how, before a run: a line for parameters that are alike.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zero/dtype.h"
#include "zero/engine_options.h"
#include "zero/optimizer_rules.h"
#include "zero/plan.h"

namespace zero {

/// Parameters whose names differ in numbers only ("h.*.ln_1.weight") and whose other fields are the same.
struct ParameterSummary {
  std::string pattern;       // a name, with * in place of numbers that differ
  int64_t count = 0;         // of parameters, tied ones once
  int64_t numel = 0;         // of all of them
  std::string rule;          // "AdamW", "Muon (orthogonalised)", "TorchOptimizer"; "frozen"
  std::string group;         // the parameter group's pattern; "": none
  double lr = 0;             // absolute, or the base rate scaled; before the schedule
  double weight_decay = 0;   // what of it counts: 0 where the rule does not decay such a parameter
  Dtype dtype = Dtype::f32;  // of the parameter
  std::string master;        // "fp32", "16 bits more", "itself", "none, rounded"; "": frozen
  bool operator==(const ParameterSummary&) const = default;
};

/// In the plan's order. `rule`: nothing for an optimizer that is not ours. `base_lr`: before the schedule.
/// Throws Config for a group's pattern that matches no parameter.
std::vector<ParameterSummary> summarise_parameters(const Plan& plan, const EngineOptions& options,
                                                   const std::optional<OptimizerRule>& rule, double base_lr);

/// A table with a heading, a line each; ends with a newline. In fewer `columns` than it takes (0: as many as
/// it takes) what is the same for all parameters is said once above it, then each parameter gets two lines,
/// and names are shortened in the middle.
std::string to_text(const std::vector<ParameterSummary>& summary, int columns = 0);

}  // namespace zero
