#pragma once
// --budget of the verbs that use a trained model.

#include <cstdint>
#include <string>

namespace zero::tool {

inline const std::string kBudgetHelp =
    "gathered parameters a rank holds where ranks share no memory: 2GiB, or all";

/// Bytes: "2GiB", "0", "all" (kAllBytes); `unset` for "". Throws Config.
int64_t budget_of(const std::string& text, int64_t unset);

}  // namespace zero::tool
