#pragma once
// Patterns of parameter names, in configurations and in parameter groups.

#include <string_view>

namespace zero {

/// True if the glob matches the whole name: '*' any run of characters (dots too), '?' one character, "[a-c]"
/// one of a set, "[!a-c]" or "[^a-c]" one that is not in it, others themselves. A ']' that comes first in a
/// set is a member, a '-' that comes last too. What is no glob matches nothing.
bool glob_matches(std::string_view glob, std::string_view name);

/// False for an empty text and one with a '[' that is never closed.
bool is_glob(std::string_view text);

}  // namespace zero
