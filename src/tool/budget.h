#pragma once
// --budget and --disk of the verbs that use a trained model.

#include <cstdint>
#include <string>

namespace zero::tool {

inline const std::string kBudgetHelp =
    "gathered parameters a rank holds where ranks share no memory: 2GiB, or all";

inline const std::string kDiskHelp =
    "where weights that cannot be mapped lie meanwhile, in a file for you alone and without a name [memory]";

/// Bytes: "2GiB", "0", "all" (kAllBytes); `unset` for "". Throws Config.
int64_t budget_of(const std::string& text, int64_t unset);

}  // namespace zero::tool
