#pragma once
// `--set section.key=value`.

#include <span>
#include <string>

#include "config/value.h"

namespace zero::config {

/// Writes each override into the tree, in order; missing objects are made, list items are named by index
/// ("parameter_groups.0.lr"). The value is JSON, or a string where it is not JSON. Throws Config.
void apply_overrides(Value& root, std::span<const std::string> overrides);

}  // namespace zero::config
