#pragma once
// What the shapes of all models have in common: ranges, and pieces of a module tree.

#include <cstdint>
#include <string>
#include <vector>

#include "zero/plan.h"

namespace zero::shapes {

// With these bounds every product in a count of parameters stays under 2^63.
inline constexpr int64_t kMostTokens = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMostLayers = int64_t{1} << 16;
inline constexpr int64_t kMostWidth = int64_t{1} << 20;

/// Throws Config: "MODEL FIELD: expected 1 to LARGEST, got VALUE".
void check_range(const char* model, const char* field, int64_t value, int64_t largest);
void check_positive(const char* model, const char* field, double value);

ModuleSpec module(const std::string& name, std::vector<ModuleSpec> children = {});
/// A module with nothing but a weight: an embedding, or a norm without a bias.
ModuleSpec weight_only(const std::string& name, std::vector<int64_t> shape);
/// A norm with a bias.
ModuleSpec layer_norm(const std::string& name, int64_t width);
/// A linear layer, weight [out, in], or [in, out] where `transposed`.
ModuleSpec linear(const std::string& name, int64_t in, int64_t out, bool bias, bool transposed = false);

/// Elements of all parameters of a tree.
int64_t numel_of(const ModuleSpec& module);

}  // namespace zero::shapes
