#pragma once
// JSON from files nobody vouches for: how this library reads all of it but configurations, which people
// write (src/config).

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
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

  class Elements;
  class Members;
  /// The elements of an array, in order, as a JsonPlace each.
  Elements elements() const;
  /// The names and values of an object whose keys the file chooses, in the order of their names, as a pair of
  /// a string and a JsonPlace each.
  Members members() const;

  /// Throws Corrupt: expectation(what, value()) at this place.
  [[noreturn]] void expected(std::string_view what) const;

 private:
  JsonPlace(const nlohmann::json& value, std::string place, bool is_document)
      : value_(&value), place_(std::move(place)), is_document_(is_document) {}

  /// A member whose name the file chooses.
  JsonPlace entry(const std::string& name, const nlohmann::json& value) const;
  JsonPlace inner(const nlohmann::json& value, std::string_view separator, std::string_view step) const;

  const nlohmann::json* value_;
  std::string place_;
  bool is_document_ = true;  // a path has yet to begin
};

/// For loops over it; the document must outlive it.
class JsonPlace::Elements {
 public:
  class Iterator {
   public:
    Iterator(const JsonPlace& array, size_t index) : array_(array), index_(index) {}
    JsonPlace operator*() const { return array_.at(index_); }
    Iterator& operator++() { return ++index_, *this; }
    bool operator==(const Iterator& other) const { return index_ == other.index_; }

   private:
    const JsonPlace& array_;
    size_t index_;
  };

  /// Throws as array_size().
  explicit Elements(JsonPlace array) : array_(std::move(array)), size_(array_.array_size()) {}
  Iterator begin() const { return {array_, 0}; }
  Iterator end() const { return {array_, size_}; }

 private:
  JsonPlace array_;
  size_t size_;
};

/// The same of an object.
class JsonPlace::Members {
 public:
  using Inner = nlohmann::json::object_t::const_iterator;
  class Iterator {
   public:
    Iterator(const JsonPlace& object, Inner inner) : object_(object), inner_(inner) {}
    std::pair<const std::string&, JsonPlace> operator*() const {
      return {inner_->first, object_.entry(inner_->first, inner_->second)};
    }
    Iterator& operator++() { return ++inner_, *this; }
    bool operator==(const Iterator& other) const { return inner_ == other.inner_; }

   private:
    const JsonPlace& object_;
    Inner inner_;
  };

  /// Throws as require_object().
  explicit Members(JsonPlace object) : object_(std::move(object)) { object_.require_object(); }
  Iterator begin() const { return {object_, all().begin()}; }
  Iterator end() const { return {object_, all().end()}; }

 private:
  const nlohmann::json::object_t& all() const {
    return object_.value().get_ref<const nlohmann::json::object_t&>();
  }
  JsonPlace object_;
};

inline JsonPlace::Elements JsonPlace::elements() const { return Elements(*this); }
inline JsonPlace::Members JsonPlace::members() const { return Members(*this); }

}  // namespace zero
