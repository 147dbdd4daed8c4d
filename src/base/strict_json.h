#pragma once
// JSON from files nobody vouches for: how this library reads all of it but configurations, which people
// write (src/config).

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>

namespace zero {

/// Throws Corrupt for syntax, with line and column, a key that is given twice in one object, or nesting
/// beyond 64.
nlohmann::json parse_json(std::string_view text, std::string_view place);

/// A value as a message shows it: on one line, cut where it is long.
std::string json_text(const nlohmann::json& value);

/// "expected WHAT, got VALUE"; null counts as nothing.
std::string expectation(std::string_view what, const nlohmann::json& value);

/// One value of a document together with its path there, for errors ("tokenizer.json: model.vocab"). The
/// document must outlive it.
///
/// What reads a value throws Corrupt where it is of another type: "FILE: PATH: expected ..., got ...".
class JsonPlace {
 public:
  /// The whole of a document; `place` is the file, or what else it is.
  JsonPlace(const nlohmann::json& document, std::string place)
      : value_(&document), place_(std::move(place)) {}

  const nlohmann::json& value() const { return *value_; }
  /// "FILE: PATH", or "FILE" for the whole of it.
  const std::string& place() const { return place_; }

  /// The member `key` of an object; a null value when it is not there.
  JsonPlace operator[](std::string_view key) const;

  /// Element `index` of an array, which must have it.
  JsonPlace at(size_t index) const;

  bool is_null() const { return value_->is_null(); }
  bool is_object() const { return value_->is_object(); }
  bool is_array() const { return value_->is_array(); }
  bool is_string() const { return value_->is_string(); }

  const std::string& string() const;
  bool boolean() const;
  size_t array_size() const;
  /// A whole number in [0, limit).
  int64_t integer(int64_t limit) const;
  /// A whole number in [0, 2^63).
  int64_t count() const;
  /// A whole number in [0, 2^64).
  uint64_t uint64() const;
  /// A text of 16 lower-case hexadecimal digits.
  uint64_t hex64() const;
  /// As boolean(), `fallback` when the value is null.
  bool boolean_or(bool fallback) const { return is_null() ? fallback : boolean(); }

  void require_object() const;

  /// The elements of an array, in order.
  auto elements() const {
    return std::views::iota(size_t{0}, array_size()) |
           std::views::transform([array = *this](size_t index) { return array.at(index); });
  }

  /// The names and values of an object whose keys the file chooses, in the order of their names.
  auto members() const {
    require_object();
    using Members = nlohmann::json::object_t;
    return std::views::transform(
        value_->get_ref<const Members&>(), [object = *this](const Members::value_type& member) {
          return std::pair<const std::string&, JsonPlace>(member.first, object.entry(member));
        });
  }

  /// Throws Corrupt: expectation(what, value()) at this place.
  [[noreturn]] void expected(std::string_view what) const;

 private:
  JsonPlace(const nlohmann::json& value, std::string place, bool is_document)
      : value_(&value), place_(std::move(place)), is_document_(is_document) {}

  JsonPlace entry(const nlohmann::json::object_t::value_type& member) const;
  JsonPlace inner(const nlohmann::json& value, std::string_view separator, std::string_view step) const;

  const nlohmann::json* value_;
  std::string place_;
  bool is_document_ = true;  // a path has yet to begin
};

}  // namespace zero
