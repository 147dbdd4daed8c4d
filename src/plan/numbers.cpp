// Numbers as people write and read them.
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>

#include "zero/error.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

// 128 bits: 18 digits times any unit fit.
using Wide = unsigned __int128;
constexpr Wide kTooLarge = Wide{1} << 62;

struct Unit {
  std::string_view name;  // lower case
  uint64_t factor;
};
constexpr std::array<Unit, 6> kCountUnits{{{"", 1},
                                           {"k", 1'000},
                                           {"m", 1'000'000},
                                           {"g", 1'000'000'000},
                                           {"b", 1'000'000'000},
                                           {"t", 1'000'000'000'000}}};
constexpr std::array<Unit, 10> kByteUnits{{{"", 1},
                                           {"b", 1},
                                           {"kb", 1'000},
                                           {"mb", 1'000'000},
                                           {"gb", 1'000'000'000},
                                           {"tb", 1'000'000'000'000},
                                           {"kib", uint64_t{1} << 10},
                                           {"mib", uint64_t{1} << 20},
                                           {"gib", uint64_t{1} << 30},
                                           {"tib", uint64_t{1} << 40}}};

// A decimal number kept exact: digits * 10^exponent, and what stands behind it.
struct Decimal {
  uint64_t digits = 0;
  int exponent = 0;
  std::string_view unit;
};

std::string_view take_digits(std::string_view& text) {
  size_t count = 0;
  while (count < text.size() && std::isdigit(static_cast<unsigned char>(text[count]))) ++count;
  std::string_view digits = text.substr(0, count);
  text.remove_prefix(count);
  return digits;
}

std::optional<Decimal> parse_decimal(std::string_view text) {
  std::string digits(take_digits(text));
  size_t whole = digits.size();
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    digits += take_digits(text);
  }
  if (digits.empty()) return std::nullopt;
  while (digits.size() > whole && digits.back() == '0') digits.pop_back();
  Decimal decimal{.digits = 0, .exponent = -static_cast<int>(digits.size() - whole), .unit = {}};
  digits.erase(0, digits.find_first_not_of('0'));
  if (digits.size() > 18) return std::nullopt;
  std::from_chars(digits.data(), digits.data() + digits.size(), decimal.digits);

  if (text.size() > 1 && (text[0] == 'e' || text[0] == 'E')) {
    bool negative = text[1] == '-';
    text.remove_prefix(text[1] == '-' || text[1] == '+' ? 2 : 1);
    std::string_view power = take_digits(text);
    if (power.empty() || power.size() > 3) return std::nullopt;
    int exponent = 0;
    std::from_chars(power.data(), power.data() + power.size(), exponent);
    decimal.exponent += negative ? -exponent : exponent;
  }
  while (text.starts_with(' ')) text.remove_prefix(1);
  decimal.unit = text;
  return decimal;
}

struct Whole {
  uint64_t value;
  bool exact;  // false: rounded down
};

// Nothing for a number that does not parse; 2^62 for anything larger.
template <size_t N>
std::optional<Whole> parse_whole(std::string_view text, const std::array<Unit, N>& units) {
  auto decimal = parse_decimal(text);
  if (!decimal) return std::nullopt;
  std::string name(decimal->unit);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Unit& unit : units) {
    if (unit.name != name) continue;
    Wide value = Wide{decimal->digits} * unit.factor;
    bool exact = true;
    for (int i = 0; i < decimal->exponent && value > 0 && value < kTooLarge; ++i) value *= 10;
    for (int i = decimal->exponent; i < 0 && value > 0; ++i) {
      exact = exact && value % 10 == 0;
      value /= 10;
    }
    return Whole{static_cast<uint64_t>(std::min(value, kTooLarge)), exact};
  }
  return std::nullopt;
}

[[noreturn]] void fail_number(std::string_view place, std::string_view expected, std::string_view got) {
  fail(ErrorKind::Config, place, "expected " + std::string(expected) + ", got \"" + std::string(got) + "\"");
}

// Three significant digits and the power of 1000.
std::string three_digits(int64_t value, const char* separator, const std::array<const char*, 7>& units) {
  double scaled = static_cast<double>(value);
  size_t unit = 0;
  for (; scaled >= 999.5 && unit + 1 < units.size(); ++unit) scaled /= 1000;
  int decimals = unit == 0 || scaled >= 99.95 ? 0 : scaled >= 9.995 ? 1 : 2;
  char text[64];
  std::snprintf(text, sizeof text, "%.*f%s%s", decimals, scaled, separator, units[unit]);
  return text;
}

}  // namespace

int64_t parse_count(std::string_view text, std::string_view place) {
  auto whole = parse_whole(text, kCountUnits);
  if (!whole) fail_number(place, "a count such as 7.5e9, 124M, 1.5B or 1T", text);
  if (!whole->exact) fail_number(place, "a whole number", text);
  if (whole->value < 1 || whole->value > uint64_t{1} << 56)
    fail_number(place, "a number from 1 to 2^56", text);
  return static_cast<int64_t>(whole->value);
}

int64_t parse_bytes(std::string_view text, std::string_view place) {
  auto whole = parse_whole(text, kByteUnits);
  if (!whole) fail_number(place, "a size such as 32GB, 80GiB or 500MB", text);
  if (whole->value < 1 || whole->value >= kTooLarge) fail_number(place, "a size from 1 byte to 2^62", text);
  return static_cast<int64_t>(whole->value);
}

std::string human_bytes(int64_t bytes) {
  return three_digits(bytes, " ", {"B", "kB", "MB", "GB", "TB", "PB", "EB"});
}

std::string human_count(int64_t count) { return three_digits(count, "", {"", "k", "M", "G", "T", "P", "E"}); }

}  // namespace zero
