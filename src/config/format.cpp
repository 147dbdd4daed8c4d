#include "config/format.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/glob.h"
#include "zero/config_sections.h"

namespace zero::config {

namespace {

bool parse_integer(const Value& value, int64_t min, int64_t max, int64_t& out) {
  int64_t n = value.integer;
  if (value.kind == Value::Kind::Real) {
    if (std::abs(value.real) > static_cast<double>(kMaxInteger) || std::trunc(value.real) != value.real)
      return false;
    n = static_cast<int64_t>(value.real);
  } else if (value.kind != Value::Kind::Integer) {
    return false;
  }
  if (n < min || n > max) return false;
  out = n;
  return true;
}

std::string integer_range(int64_t min, int64_t max, int64_t unbounded) {
  if (max == unbounded) return "an integer >= " + std::to_string(min);
  return "an integer from " + std::to_string(min) + " to " + std::to_string(max);
}

template <class T>
Json to_json_value(const T& value) {
  return Json(value);
}

bool is_number(const Value& value) {
  const bool number = value.kind == Value::Kind::Integer || value.kind == Value::Kind::Real;
  return number && std::isfinite(value.real);
}

Format<double> number(std::string expected, const Json& bounds, std::function<bool(double)> accepts) {
  Format<double> format;
  format.expected = std::move(expected);
  format.schema = bounds;
  format.schema["type"] = "number";
  format.parse = [accepts = std::move(accepts)](const Value& value, double& out) {
    if (!is_number(value) || !accepts(value.real)) return false;
    out = value.real;
    return true;
  };
  format.print = to_json_value<double>;
  return format;
}

// "0", not "0.0".
std::string shown(double x) {
  std::string text = Json(x).dump();
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text;
}

struct ByteUnit {
  std::string_view name;
  double bytes;
};
constexpr ByteUnit kByteUnits[] = {
    {"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
    {"TiB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},
};

bool parse_byte_text(std::string_view text, int64_t& out) {
  double amount = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, amount);
  if (error != std::errc() || !std::isfinite(amount) || amount < 0) return false;
  std::string_view unit(rest, end);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const ByteUnit& known : kByteUnits) {
    if (!equal_ignoring_case(unit, known.name)) continue;
    const double total = std::floor(amount * known.bytes);
    if (total > static_cast<double>(kMaxInteger)) return false;
    out = static_cast<int64_t>(total);
    return true;
  }
  return false;
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [&](char x, char y) { return lower(x) == lower(y); });
}

Json or_null(const Json& schema) { return {{"anyOf", {schema, {{"type", "null"}}}}}; }

std::string or_list(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); i++) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += in_quotes(words[i]);
  }
  return text;
}

Format<int64_t> integer(int64_t min, int64_t max) {
  Format<int64_t> format;
  format.expected = integer_range(min, max, kMaxInteger);
  format.schema = {{"type", "integer"}, {"minimum", min}, {"maximum", max}};
  format.parse = [min, max](const Value& value, int64_t& out) { return parse_integer(value, min, max, out); };
  format.print = to_json_value<int64_t>;
  return format;
}

Format<int> count(int min, int max) {
  Format<int> format;
  format.expected = integer_range(min, max, kMaxCount);
  format.schema = {{"type", "integer"}, {"minimum", min}, {"maximum", max}};
  format.parse = [min, max](const Value& value, int& out) {
    int64_t n = 0;
    if (!parse_integer(value, min, max, n)) return false;
    out = static_cast<int>(n);
    return true;
  };
  format.print = to_json_value<int>;
  return format;
}

Format<double> number_at_least(double min) {
  return number("a number >= " + shown(min), {{"minimum", min}}, [min](double x) { return x >= min; });
}

Format<double> number_above(double min) {
  return number("a number > " + shown(min), {{"exclusiveMinimum", min}}, [min](double x) { return x > min; });
}

Format<double> number_within(double min, double max) {
  return number("a number from " + shown(min) + " to " + shown(max), {{"minimum", min}, {"maximum", max}},
                [=](double x) { return x >= min && x <= max; });
}

Format<double> number_below_one() {
  return number("a number >= 0 and < 1", {{"minimum", 0}, {"exclusiveMaximum", 1}},
                [](double x) { return x >= 0 && x < 1; });
}

Format<bool> boolean() {
  Format<bool> format;
  format.expected = "true or false";
  format.schema = {{"type", "boolean"}};
  format.parse = [](const Value& value, bool& out) {
    if (value.kind != Value::Kind::Bool) return false;
    out = value.boolean;
    return true;
  };
  format.print = to_json_value<bool>;
  return format;
}

Format<std::string> text() {
  Format<std::string> format;
  format.expected = "a string";
  format.schema = {{"type", "string"}};
  format.parse = [](const Value& value, std::string& out) {
    if (value.kind != Value::Kind::String) return false;
    out = value.text;
    return true;
  };
  format.print = to_json_value<std::string>;
  return format;
}

Format<std::string> nonempty_text() {
  Format<std::string> format = text();
  format.expected = "a string that is not empty";
  format.schema["minLength"] = 1;
  format.parse = [parse = format.parse](const Value& value, std::string& out) {
    return !value.text.empty() && parse(value, out);
  };
  return format;
}

Format<std::string> glob() {
  Format<std::string> format = text();
  format.expected = "a glob, as \"*.bias\" or \"h.[0-3].*\"";
  format.parse = [parse = format.parse](const Value& value, std::string& out) {
    return is_glob(value.text) && parse(value, out);
  };
  return format;
}

Format<std::vector<std::string>> list_of_globs() {
  Format<std::vector<std::string>> format;
  format.expected = "a list of globs, as \"*.bias\" or \"h.[0-3].*\"";
  format.schema = {{"type", "array"}, {"items", {{"type", "string"}}}};
  format.parse = [](const Value& value, std::vector<std::string>& out) {
    std::vector<std::string> items(value.items.size());
    if (value.kind != Value::Kind::Array) return false;
    for (size_t i = 0; i < items.size(); i++) {
      if (!glob().parse(value.items[i], items[i])) return false;
    }
    out = std::move(items);
    return true;
  };
  format.print = to_json_value<std::vector<std::string>>;
  return format;
}

Format<std::vector<int64_t>> list_of_counts() {
  Format<std::vector<int64_t>> format;
  format.expected = "a list of integers >= 0";
  format.schema = {{"type", "array"}, {"items", integer(0).schema}};
  format.parse = [](const Value& value, std::vector<int64_t>& out) {
    std::vector<int64_t> items(value.items.size());
    if (value.kind != Value::Kind::Array) return false;
    for (size_t i = 0; i < items.size(); i++)
      if (!integer(0).parse(value.items[i], items[i])) return false;
    out = std::move(items);
    return true;
  };
  format.print = to_json_value<std::vector<int64_t>>;
  return format;
}

Format<std::array<double, 2>> pair_below_one() {
  Format<std::array<double, 2>> format;
  format.expected = "a list of two numbers >= 0 and < 1";
  format.schema = {{"type", "array"}, {"items", number_below_one().schema}, {"minItems", 2}, {"maxItems", 2}};
  format.parse = [](const Value& value, std::array<double, 2>& out) {
    std::array<double, 2> pair{};
    if (value.kind != Value::Kind::Array || value.items.size() != pair.size()) return false;
    const Format<double> each = number_below_one();
    for (size_t i = 0; i < pair.size(); i++) {
      if (!each.parse(value.items[i], pair[i])) return false;
    }
    out = pair;
    return true;
  };
  format.print = to_json_value<std::array<double, 2>>;
  return format;
}

Format<int64_t> bytes() {
  Format<int64_t> format;
  format.expected = "bytes >= 0, as a number, \"512MiB\" or \"all\"";
  format.schema = {{"anyOf", {{{"type", "integer"}, {"minimum", 0}}, {{"type", "string"}}}}};
  format.parse = [](const Value& value, int64_t& out) {
    if (value.kind != Value::Kind::String) return parse_integer(value, 0, kMaxInteger, out);
    if (value.text != "all") return parse_byte_text(value.text, out);
    out = kAllBytes;
    return true;
  };
  format.print = [](const int64_t& value) { return value == kAllBytes ? Json("all") : Json(value); };
  return null_as<int64_t>(-1, format);
}

Format<TierChoice> tier_choice() {
  return choice<TierChoice>({{"none", TierChoice::Device},
                             {"host", TierChoice::Host},
                             {"disk", TierChoice::Disk},
                             {"auto", TierChoice::Auto}});
}

Format<Dtype> training_dtype() {
  Format<Dtype> format = choice<Dtype>({{"fp32", Dtype::f32},
                                        {"bf16", Dtype::bf16},
                                        {"float32", Dtype::f32},
                                        {"bfloat16", Dtype::bf16},
                                        {"float", Dtype::f32},
                                        {"fp16", Dtype::f16},
                                        {"float16", Dtype::f16},
                                        {"half", Dtype::f16}});
  format.expected = or_list({"fp32", "bf16", "fp16"});
  return format;
}

}  // namespace zero::config
