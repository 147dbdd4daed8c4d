#pragma once
// JSON text -> positioned value tree.

#include <string_view>

#include "config/value.h"

namespace zero::config {

inline constexpr size_t kMaxTextBytes = 1 << 20;
inline constexpr int kMaxDepth = 64;

/// Parses one JSON value; // and /* */ comments and trailing commas are allowed. `place` is where the text
/// starts (line 1 of a file; line 0 for a text without lines). Throws Config with the line for a text that is
/// too long or not UTF-8, a syntax error, a duplicate key, too deep nesting, or a number outside double.
Value parse_json(std::string_view text, const Place& place);

}  // namespace zero::config
