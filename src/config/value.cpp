#include "config/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

namespace zero::config {

namespace {
constexpr size_t kShownCharacters = 60;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
}  // namespace

std::string Place::text() const {
  std::string text = source ? *source : std::string("configuration");
  if (line > 0) text += ":" + std::to_string(line);
  return text;
}

const Member* Value::find(std::string_view key) const {
  auto it = std::find_if(members.begin(), members.end(), [&](const Member& m) { return m.key == key; });
  return it == members.end() ? nullptr : &*it;
}

Member* Value::find(std::string_view key) {
  return const_cast<Member*>(static_cast<const Value*>(this)->find(key));
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size(); i++) {
    if (i >= kShownCharacters && !is_continuation(text[i])) return out + "...\"";
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == '"' || c == '\\') out += '\\';
    if (c < 0x20 || c == 0x7F) {
      constexpr char kHex[] = "0123456789abcdef";
      out += std::string("\\u00") + kHex[c >> 4] + kHex[c & 15];
    } else {
      out += text[i];
    }
  }
  return out + "\"";
}

std::string describe(const Value& value) {
  switch (value.kind) {
    case Value::Kind::Null:
      return "null";
    case Value::Kind::Bool:
      return value.boolean ? "true" : "false";
    case Value::Kind::Integer:
    case Value::Kind::Real:
      return value.text.substr(0, kShownCharacters);
    case Value::Kind::String:
      return in_quotes(value.text);
    case Value::Kind::Array:
      return "an array of " + std::to_string(value.items.size());
    case Value::Kind::Object:
      return "an object";
  }
  return "?";
}

std::optional<Value> without_quotes(const Value& value) {
  Value bare = value;
  if (value.kind == Value::Kind::Array && !value.items.empty()) {
    for (Value& item : bare.items) {
      const bool is_number = item.kind == Value::Kind::Integer || item.kind == Value::Kind::Real;
      const auto inner = without_quotes(item);
      if (!inner && !is_number) return std::nullopt;
      if (inner) item = *inner;
    }
    return bare;
  }
  if (value.kind != Value::Kind::String) return std::nullopt;
  const char *begin = value.text.data(), *end = begin + value.text.size();
  const auto whole = std::from_chars(begin, end, bare.integer);
  if (whole.ec == std::errc() && whole.ptr == end) {
    bare.kind = Value::Kind::Integer;
    bare.real = static_cast<double>(bare.integer);
    return bare;
  }
  const auto real = std::from_chars(begin, end, bare.real);
  if (real.ec != std::errc() || real.ptr != end || !std::isfinite(bare.real)) return std::nullopt;
  bare.kind = Value::Kind::Real;
  return bare;
}

bool equals(const Value& value, const nlohmann::ordered_json& json) {
  switch (value.kind) {
    case Value::Kind::Null:
      return json.is_null();
    case Value::Kind::Bool:
      return json.is_boolean() && json.get<bool>() == value.boolean;
    case Value::Kind::Integer:
      if (json.is_number_integer()) return json.get<int64_t>() == value.integer;
      [[fallthrough]];
    case Value::Kind::Real:
      return json.is_number() && json.get<double>() == value.real;
    case Value::Kind::String:
      return json.is_string() && json.get_ref<const std::string&>() == value.text;
    case Value::Kind::Array:
      return json.is_array() && json.size() == value.items.size() &&
             std::equal(value.items.begin(), value.items.end(), json.begin(), equals);
    case Value::Kind::Object:
      return json.is_object() && json.size() == value.members.size() &&
             std::all_of(value.members.begin(), value.members.end(), [&](const Member& m) {
               return json.contains(m.key) && equals(m.value, json.at(m.key));
             });
  }
  return false;
}

}  // namespace zero::config
