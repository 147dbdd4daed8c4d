// Parameter groups: names to groups by shell glob.
#include <string>

#include "base/glob.h"
#include "optim/shard_optimizer.h"
#include "rules/check.h"
#include "zero/error.h"

namespace zero {

void validate(std::span<const ParameterGroup> groups) {
  for (const auto& group : groups) {
    const std::string place = "parameter group \"" + group.pattern + "\"";
    require(is_glob(group.pattern), ErrorKind::Config, place,
            group.pattern.empty() ? "pattern is empty, expected a glob over parameter names"
                                  : "pattern has a [ that is never closed");
    const double lr = group.lr.value_or(0), weight_decay = group.weight_decay.value_or(0);
    check(is_finite_non_negative(lr), place, "lr", lr, kFiniteNonNegative);
    check(is_finite_non_negative(group.lr_scale), place, "lr_scale", group.lr_scale, kFiniteNonNegative);
    check(is_finite_non_negative(weight_decay), place, "weight_decay", weight_decay, kFiniteNonNegative);
  }
}

std::vector<int> assign_groups(std::span<const std::string> names, std::span<const ParameterGroup> groups) {
  std::vector<int> assigned(names.size(), 0);
  for (size_t g = 0; g < groups.size(); ++g) {
    bool matched = false;
    for (size_t i = 0; i < names.size(); ++i) {
      if (!glob_matches(groups[g].pattern, names[i])) continue;
      matched = true;
      if (assigned[i] == 0) assigned[i] = static_cast<int>(g) + 1;
    }
    require(matched, ErrorKind::Config, "parameter group \"" + groups[g].pattern + "\"",
            "matches no parameter", "patterns cover the full dotted name, e.g. \"*.bias\"");
  }
  return assigned;
}

}  // namespace zero
