#pragma once
// JSON of checkpoints as base/strict_json.h reads it, and the spellings they use.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/strict_json.h"

namespace zero::checkpoint {

using Json = nlohmann::json;

/// parse_json() of one object. Throws Corrupt for anything else too.
Json parse_object(std::string_view text, std::string_view place);

/// A name from outside in quotes, escaped, for messages of one line.
std::string in_quotes(std::string_view name);

std::string to_hex(uint64_t value);

}  // namespace zero::checkpoint
