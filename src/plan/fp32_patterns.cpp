#include "plan/fp32_patterns.h"

#include <algorithm>

#include "base/glob.h"
#include "zero/error.h"

namespace zero {
namespace {

bool matches_any(const std::string& pattern, const ModuleSpec& module) {
  const auto here = [&](const ParameterSpec& parameter) {
    return is_floating(parameter.dtype) && glob_matches(pattern, parameter.name);
  };
  return std::any_of(module.parameters.begin(), module.parameters.end(), here) ||
         std::any_of(module.children.begin(), module.children.end(),
                     [&](const ModuleSpec& child) { return matches_any(pattern, child); });
}

}  // namespace

std::vector<std::string> fp32_patterns_of_part(const std::vector<std::string>& patterns,
                                               const ModuleSpec& whole, const ModuleSpec& part) {
  std::vector<std::string> of_part;
  for (const std::string& pattern : patterns) {
    require(matches_any(pattern, whole), ErrorKind::Config, "fp32_parameters",
            "\"" + pattern + "\" matches no floating-point parameter",
            "patterns cover the full dotted name, e.g. \"*.ln_1.*\"");
    if (matches_any(pattern, part)) of_part.push_back(pattern);
  }
  return of_part;
}

}  // namespace zero
