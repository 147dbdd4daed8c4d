#pragma once
// One sentence for every value out of range: "PLACE: FIELD is VALUE, expected EXPECTED".

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace zero {

/// Throws Config unless `ok`.
void check(bool ok, std::string_view place, std::string_view field, double value, std::string_view expected);
void check(bool ok, std::string_view place, std::string_view field, int64_t value, std::string_view expected);

/// `value` in the fewest digits that tell it apart ("0.001", "1e-08", "nan").
std::string to_text(double value);

inline bool is_finite_non_negative(double value) { return std::isfinite(value) && value >= 0; }
inline bool is_beta(double value) { return value >= 0 && value < 1; }
constexpr std::string_view kFiniteNonNegative = "a finite number >= 0";
constexpr std::string_view kBetaRange = "at least 0 and below 1";

}  // namespace zero
