#pragma once
// Patterns of parameters that stay fp32, of a part of a model.

#include <string>
#include <vector>

#include "zero/plan.h"

namespace zero {

/// Those of the patterns (EngineOptions::fp32_parameters) that match a floating parameter of `part`, which a
/// stage of a pipeline holds of `whole`. Throws Config for one that matches none of the whole.
std::vector<std::string> fp32_patterns_of_part(const std::vector<std::string>& patterns,
                                               const ModuleSpec& whole, const ModuleSpec& part);

}  // namespace zero
