#pragma once
// Members of JSON objects that come from a disk: every surprise is a Corrupt error that says where.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace zero::checkpoint {

using Json = nlohmann::json;

/// parse_json() of one object. Throws Corrupt for anything else too.
Json parse_object(std::string_view text, std::string_view place);

/// A member of an object, of the wanted type. Throw Corrupt: "PLACE: KEY: expected ..., got ...".
const Json& member(const Json& object, std::string_view key, Json::value_t type, std::string_view place);
/// An integer in [0, 2^63).
int64_t count_member(const Json& object, std::string_view key, std::string_view place);
int64_t count_value(const Json& value, std::string_view key, std::string_view place);
std::string text_member(const Json& object, std::string_view key, std::string_view place);
/// 16 lower-case hexadecimal digits.
uint64_t hex_value(const Json& value, std::string_view key, std::string_view place);
uint64_t hex_member(const Json& object, std::string_view key, std::string_view place);

/// A name from outside in quotes, escaped, for messages of one line.
std::string in_quotes(std::string_view name);

std::string to_hex(uint64_t value);

}  // namespace zero::checkpoint
