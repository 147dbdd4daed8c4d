#pragma once
// A JSON value that remembers where it was written.

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace zero::config {

struct Place {
  std::shared_ptr<const std::string> source;  // file name, or "--set key=value"
  int line = 0;                               // from 1; 0 where the source has no lines

  std::string text() const;  // "file:12" or "--set key=value"
};

struct Member;

struct Value {
  enum class Kind { Null, Bool, Integer, Real, String, Array, Object };

  Kind kind = Kind::Null;
  bool boolean = false;
  int64_t integer = 0;  // Integer
  double real = 0;      // Integer and Real
  std::string text;     // String: the characters; Integer and Real: as written
  std::vector<Value> items;
  std::vector<Member> members;  // in the order written, keys unique
  Place place;

  const Member* find(std::string_view key) const;
  Member* find(std::string_view key);
  bool is_object() const { return kind == Kind::Object; }
  bool is_string(std::string_view expected) const { return kind == Kind::String && text == expected; }
};

struct Member {
  std::string key;
  Place place;
  Value value;
};

/// The value for an error message, at most some 60 characters: `"abc"`, `1.5`, `null`, `an object`, `an array
/// of 3`.
std::string describe(const Value& value);

/// Of a number in quotes, as "1e-5", the number, and likewise in a list; nothing for anything else.
std::optional<Value> without_quotes(const Value& value);

/// Same type and content; 1 equals 1.0.
bool equals(const Value& value, const nlohmann::ordered_json& json);

/// `text` in quotes, control characters escaped, shortened in the middle of long texts.
std::string in_quotes(std::string_view text);

}  // namespace zero::config
