#pragma once
// How one value is written in JSON: what is expected, reading, printing.

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/value.h"
#include "zero/config_sections.h"
#include "zero/dtype.h"

namespace zero::config {

using Json = nlohmann::ordered_json;

template <class T>
struct Format {
  std::string expected;                         // "an integer >= 1"
  std::function<bool(const Value&, T&)> parse;  // false: the value is not what is expected; T is untouched
  std::function<Json(const T&)> print;
  std::vector<std::string> choices;      // of a fixed set of strings, for the nearest one
  std::vector<std::string> unsupported;  // strings that DeepSpeed knows and this version does not do
  Json schema = Json::object();          // the same as a JSON schema: never narrower than `parse`, but that
                                         // words of a choice are in the case in which they are printed and
                                         // numbers stand without quotes
};

/// A JSON schema of what `schema` allows, or null.
Json or_null(const Json& schema);

inline constexpr int64_t kMaxInteger = int64_t{1} << 53;  // beyond it a double such as 5e8 would not be exact
inline constexpr int kMaxCount = 1 << 30;

/// Whole numbers in [min, max]; 5e8 counts as one.
Format<int64_t> integer(int64_t min, int64_t max = kMaxInteger);
Format<int> count(int min, int max = kMaxCount);

/// Finite numbers.
Format<double> number_at_least(double min);
Format<double> number_above(double min);
Format<double> number_within(double min, double max);  // both ends included
Format<double> number_below_one();                     // [0, 1)

Format<bool> boolean();
Format<std::string> text();
Format<std::string> nonempty_text();
Format<std::string> glob();
Format<std::vector<std::string>> list_of_globs();
Format<std::vector<int64_t>> list_of_counts();   // each >= 0
Format<std::array<double, 2>> pair_below_one();  // two numbers in [0, 1)

/// Bytes: a whole number, "512MiB", "1.5 GB", or "all" (kAllBytes); null is -1.
Format<int64_t> bytes();

/// Where states are: "none", "host", "disk", "auto".
Format<TierChoice> tier_choice();

/// fp32 and bf16 under DeepSpeed's and PyTorch's names; fp16 likewise.
Format<Dtype> training_dtype();

/// Like `format`; null stands for `sentinel`, which is printed as null.
template <class T>
Format<T> null_as(T sentinel, Format<T> format) {
  Format<T> result = format;
  result.expected += " or null";
  result.parse = [sentinel, parse = format.parse](const Value& value, T& out) {
    if (value.kind != Value::Kind::Null) return parse(value, out);
    out = sentinel;
    return true;
  };
  result.print = [sentinel, print = format.print](const T& value) {
    return value == sentinel ? Json() : print(value);
  };
  result.schema = or_null(format.schema);
  return result;
}

/// Like `format`; null stands for nothing.
template <class T>
Format<std::optional<T>> nullable(Format<T> format) {
  Format<std::optional<T>> result;
  result.expected = format.expected + " or null";
  result.choices = format.choices;
  result.unsupported = format.unsupported;
  result.parse = [parse = format.parse](const Value& value, std::optional<T>& out) {
    T inner{};
    if (value.kind == Value::Kind::Null) {
      out = std::nullopt;
    } else if (parse(value, inner)) {
      out = std::move(inner);
    } else {
      return false;
    }
    return true;
  };
  result.print = [print = format.print](const std::optional<T>& value) {
    return value ? print(*value) : Json();
  };
  result.schema = or_null(format.schema);
  return result;
}

bool equal_ignoring_case(std::string_view a, std::string_view b);

/// `"a", "b" or "c"`.
std::string or_list(const std::vector<std::string>& words);

/// One of a set of strings, in any case; the first name of a value is printed.
template <class T>
Format<T> choice(std::vector<std::pair<std::string, T>> names,
                 const std::vector<std::string>& unsupported = {}) {
  Format<T> format;
  for (const auto& [name, value] : names) format.choices.push_back(name);
  format.expected = or_list(format.choices);
  format.unsupported = unsupported;
  format.schema = {{"enum", format.choices}};
  format.parse = [names](const Value& value, T& out) {
    if (value.kind != Value::Kind::String) return false;
    for (const auto& [name, meaning] : names) {
      if (!equal_ignoring_case(name, value.text)) continue;
      out = meaning;
      return true;
    }
    return false;
  };
  format.print = [names](const T& value) {
    for (const auto& [name, meaning] : names) {
      if (meaning == value) return Json(name);
    }
    return Json();
  };
  return format;
}

}  // namespace zero::config
