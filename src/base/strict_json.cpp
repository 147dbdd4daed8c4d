#include "base/strict_json.h"

#include <unordered_set>
#include <vector>

#include "zero/error.h"

namespace zero {
namespace {

constexpr int kMostJsonDepth = 64;
constexpr size_t kMostShown = 80;
const nlohmann::json kNoJson;

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view place) {
  using nlohmann::json;
  std::vector<std::unordered_set<std::string>> keys;  // of the objects that are open
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    require(depth <= kMostJsonDepth, ErrorKind::Corrupt, place, "not valid JSON: nested too deeply");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key)
      require(keys.back().insert(value.get<std::string>()).second, ErrorKind::Corrupt, place,
              "key " + json_text(value) + " is given twice in one object");
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& error) {
    std::string reason = error.what();
    if (const size_t end = reason.find("] "); end != reason.npos) reason.erase(0, end + 2);
    fail(ErrorKind::Corrupt, place, "not valid JSON: " + reason);
  }
}

std::string json_text(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMostShown) text = text.substr(0, kMostShown - 3) + "...";
  return text;
}

JsonPlace JsonPlace::operator[](std::string_view key) const {
  if (!value_.is_object()) expected("an object");
  const auto member = value_.find(std::string(key));
  return {member == value_.end() ? kNoJson : *member,
          place_ + (place_.ends_with(": ") ? "" : ".") + std::string(key)};
}

JsonPlace JsonPlace::at(size_t index) const {
  return {value_.at(index), place_ + "[" + std::to_string(index) + "]"};
}

const std::string& JsonPlace::string() const {
  if (!value_.is_string()) expected("a string");
  return value_.get_ref<const std::string&>();
}

bool JsonPlace::boolean() const {
  if (!value_.is_boolean()) expected("true or false");
  return value_.get<bool>();
}

size_t JsonPlace::array_size() const {
  if (!value_.is_array()) expected("an array");
  return value_.size();
}

int64_t JsonPlace::integer(int64_t limit) const {
  const bool fits = value_.is_number_unsigned() && value_.get<uint64_t>() < static_cast<uint64_t>(limit);
  if (!fits) expected("an integer from 0 to " + std::to_string(limit - 1));
  return value_.get<int64_t>();
}

void JsonPlace::expected(std::string_view what) const {
  fail(ErrorKind::Corrupt, place_,
       "expected " + std::string(what) + ", got " + (value_.is_null() ? "nothing" : json_text(value_)));
}

}  // namespace zero
