#include "checkpoint/json.h"

#include <cstdio>

namespace zero::checkpoint {

Json parse_object(std::string_view text, std::string_view place) {
  Json json = parse_json(text, place);
  JsonPlace(json, std::string(place)).require_object();
  return json;
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
