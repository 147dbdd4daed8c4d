#pragma once
// Parameters that train with values of their own.

#include <optional>
#include <string>

namespace zero {

/// Parameters whose name matches `pattern` (shell glob: * ? [..] over the full dotted name) take these values
/// instead of the optimizer's. The first matching group wins; parameters that match none are group 0, the
/// default.
struct ParameterGroup {
  std::string pattern;
  std::optional<double> lr = {};  // absolute, and the schedule leaves it alone
  double lr_scale = 1;            // times the (scheduled) base rate, where lr is not given
  std::optional<double> weight_decay = {};
  bool elementwise = false;  // Muon: AdamW's update for matrices too
};

}  // namespace zero
