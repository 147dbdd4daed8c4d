#include "checkpoint/json.h"

#include <cstdio>

namespace zero::checkpoint {

Json parse_object(std::string_view text, std::string_view place) {
  Json json = parse_json(text, place);
  JsonPlace(json, std::string(place)).require_object();
  return json;
}

const Json& member(const Json& object, std::string_view key, Json::value_t type, std::string_view place) {
  const JsonPlace found = JsonPlace(object, std::string(place))[key];
  if (found.value().type() != type) found.expected("an " + std::string(Json(type).type_name()));
  return found.value();
}

int64_t count_member(const Json& object, std::string_view key, std::string_view place) {
  return JsonPlace(object, std::string(place))[key].count();
}

uint64_t hex_value(const Json& value, std::string_view key, std::string_view place) {
  return JsonPlace(value, std::string(place) + ": " + std::string(key)).hex64();
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
