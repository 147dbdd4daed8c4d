#include "rules/check.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "zero/error.h"

namespace zero {
namespace {

void check_text(bool ok, std::string_view place, std::string_view field, const std::string& value,
                std::string_view expected) {
  if (ok) return;
  fail(ErrorKind::Config, place, std::string(field) + " is " + value + ", expected " + std::string(expected));
}

}  // namespace

std::string to_text(double value) {
  std::array<char, 40> text{};
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text.data(), text.size(), "%.*g", digits, value);
    if (std::strtod(text.data(), nullptr) == value) break;
  }
  return text.data();
}

void check(bool ok, std::string_view place, std::string_view field, double value, std::string_view expected) {
  if (!ok) check_text(ok, place, field, to_text(value), expected);
}

void check(bool ok, std::string_view place, std::string_view field, int64_t value,
           std::string_view expected) {
  if (!ok) check_text(ok, place, field, std::to_string(value), expected);
}

}  // namespace zero
