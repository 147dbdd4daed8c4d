#include "plan/shape_check.h"

#include <cmath>
#include <string>

#include "zero/error.h"

namespace zero::shapes {

void check_range(const char* model, const char* field, int64_t value, int64_t largest) {
  if (value >= 1 && value <= largest) return;
  fail(ErrorKind::Config, std::string(model) + " " + field,
       "expected 1 to " + std::to_string(largest) + ", got " + std::to_string(value));
}

void check_positive(const char* model, const char* field, double value) {
  require(std::isfinite(value) && value > 0, ErrorKind::Config, std::string(model) + " " + field,
          "expected a positive number, got " + std::to_string(value));
}

}  // namespace zero::shapes
