#include "checkpoint/json.h"

#include <charconv>
#include <cstdio>
#include <limits>

#include "base/strict_json.h"
#include "zero/error.h"

namespace zero::checkpoint {
namespace {

[[noreturn]] void fail_member(std::string_view place, std::string_view key, std::string_view expected,
                              const Json* value) {
  const std::string got = value == nullptr         ? "nothing"
                          : value->is_structured() ? value->type_name()
                                                   : json_text(*value);
  fail(ErrorKind::Corrupt, place, std::string(key) + ": expected " + std::string(expected) + ", got " + got);
}

}  // namespace

Json parse_object(std::string_view text, std::string_view place) {
  Json json = parse_json(text, place);
  require(json.is_object(), ErrorKind::Corrupt, place, "expected a JSON object");
  return json;
}

const Json& member(const Json& object, std::string_view key, Json::value_t type, std::string_view place) {
  auto found = object.find(key);
  if (found == object.end()) fail_member(place, key, Json(type).type_name(), nullptr);
  if (found->type() != type) fail_member(place, key, Json(type).type_name(), &*found);
  return *found;
}

int64_t count_value(const Json& value, std::string_view key, std::string_view place) {
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMost)
    fail_member(place, key, "a whole number from 0 to 2^63 - 1", &value);
  return value.get<int64_t>();
}

int64_t count_member(const Json& object, std::string_view key, std::string_view place) {
  auto found = object.find(key);
  if (found == object.end()) fail_member(place, key, "a whole number", nullptr);
  return count_value(*found, key, place);
}

std::string text_member(const Json& object, std::string_view key, std::string_view place) {
  return member(object, key, Json::value_t::string, place).get<std::string>();
}

uint64_t hex_value(const Json& value, std::string_view key, std::string_view place) {
  const auto* text = value.get_ptr<const std::string*>();
  uint64_t number = 0;
  if (text) {
    auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number, 16);
    if (error == std::errc() && end == text->data() + text->size() && to_hex(number) == *text) return number;
  }
  fail_member(place, key, "16 hexadecimal digits", &value);
}

uint64_t hex_member(const Json& object, std::string_view key, std::string_view place) {
  return hex_value(member(object, key, Json::value_t::string, place), key, place);
}

std::string in_quotes(std::string_view name) {
  return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string to_hex(uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

}  // namespace zero::checkpoint
