#pragma once
// JSON from files nobody vouches for.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace zero {

/// Throws Corrupt for syntax, with line and column, a key that is given twice in one object, or nesting
/// beyond 64.
nlohmann::json parse_json(std::string_view text, std::string_view place);

/// A value as a message shows it: on one line, cut where it is long.
std::string json_text(const nlohmann::json& value);

/// One value of a document together with its path there, for errors ("tokenizer.json: model.vocab").
class JsonPlace {
 public:
  JsonPlace(const nlohmann::json& value, std::string place) : value_(value), place_(std::move(place)) {}

  const nlohmann::json& value() const { return value_; }
  const std::string& place() const { return place_; }

  /// The member `key`; a null value when it is not there. Throws Corrupt when this is no object.
  JsonPlace operator[](std::string_view key) const;

  /// Element `index` of an array.
  JsonPlace at(size_t index) const;

  bool is_null() const { return value_.is_null(); }

  /// Each throws Corrupt, naming the place, what was expected and what was got, when the value is of another
  /// type.
  const std::string& string() const;
  bool boolean() const;
  size_t array_size() const;
  /// An integer in [0, limit).
  int64_t integer(int64_t limit) const;

  /// As boolean(), `fallback` when the value is null.
  bool boolean_or(bool fallback) const { return is_null() ? fallback : boolean(); }

  [[noreturn]] void expected(std::string_view what) const;

 private:
  const nlohmann::json& value_;
  std::string place_;
};

}  // namespace zero
