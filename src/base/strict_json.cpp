#include "base/strict_json.h"

#include <charconv>
#include <unordered_set>
#include <vector>

#include "zero/error.h"

namespace zero {
namespace {

constexpr int kMostJsonDepth = 64;
constexpr size_t kMostShown = 80;
const nlohmann::json kNoJson;

// Whole, unlike json_text: it is part of a path.
std::string quoted(const std::string& name) {
  return nlohmann::json(name).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

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

std::string expectation(std::string_view what, const nlohmann::json& value) {
  return "expected " + std::string(what) + ", got " + (value.is_null() ? "nothing" : json_text(value));
}

JsonPlace JsonPlace::inner(const nlohmann::json& value, std::string_view separator,
                           std::string_view step) const {
  std::string place = place_;
  place.append(is_document_ ? ": " : separator).append(step);
  return {value, std::move(place), false};
}

JsonPlace JsonPlace::operator[](std::string_view key) const {
  require_object();
  const auto member = value_->find(key);
  return inner(member == value_->end() ? kNoJson : *member, ".", key);
}

JsonPlace JsonPlace::entry(const std::string& name, const nlohmann::json& value) const {
  return inner(value, "", "[" + quoted(name) + "]");
}

JsonPlace JsonPlace::at(size_t index) const {
  return inner(value_->at(index), "", "[" + std::to_string(index) + "]");
}

void JsonPlace::require_object() const {
  if (!is_object()) expected("an object");
}

const std::string& JsonPlace::string() const {
  if (!is_string()) expected("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonPlace::boolean() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

size_t JsonPlace::array_size() const {
  if (!is_array()) expected("an array");
  return value_->size();
}

int64_t JsonPlace::integer(int64_t limit) const {
  const bool fits = value_->is_number_unsigned() && std::cmp_less(value_->get<uint64_t>(), limit);
  if (!fits) expected("a whole number from 0 to " + std::to_string(limit - 1));
  return value_->get<int64_t>();
}

int64_t JsonPlace::count() const {
  const bool fits = value_->is_number_unsigned() && std::in_range<int64_t>(value_->get<uint64_t>());
  if (!fits) expected("a whole number from 0 to 2^63 - 1");
  return value_->get<int64_t>();
}

uint64_t JsonPlace::uint64() const {
  if (!value_->is_number_unsigned()) expected("a whole number from 0 to 2^64 - 1");
  return value_->get<uint64_t>();
}

uint64_t JsonPlace::hex64() const {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto* text = value_->get_ptr<const std::string*>();
  const bool fits = text && text->size() == 16 && text->find_first_not_of(kDigits) == std::string::npos;
  if (!fits) expected("16 hexadecimal digits");
  uint64_t number = 0;
  std::from_chars(text->data(), text->data() + text->size(), number, 16);
  return number;
}

void JsonPlace::expected(std::string_view what) const {
  fail(ErrorKind::Corrupt, place_, expectation(what, *value_));
}

}  // namespace zero
