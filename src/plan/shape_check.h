#pragma once
// Ranges that the shapes of all models have in common.

#include <cstdint>

namespace zero::shapes {

// With these bounds every product in a count of parameters stays under 2^63.
inline constexpr int64_t kMostTokens = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMostLayers = int64_t{1} << 16;
inline constexpr int64_t kMostWidth = int64_t{1} << 20;

/// Throws Config: "MODEL FIELD: expected 1 to LARGEST, got VALUE".
void check_range(const char* model, const char* field, int64_t value, int64_t largest);
void check_positive(const char* model, const char* field, double value);

}  // namespace zero::shapes
