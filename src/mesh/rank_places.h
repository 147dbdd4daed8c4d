#pragma once
// Where a rank stands in a mesh, for people.

#include <span>
#include <string>

#include "zero/mesh.h"

namespace zero::detail {

/// "rank 5 (pp 1, dp 0, tp 1)"; axes of one rank are left out. "rank 5" where there is one axis alone.
std::string rank_with_place(std::span<const Axis> axes, int rank);

/// A text in which each "rank N" of a mesh with these axes has its place behind it.
std::string with_places(std::span<const Axis> axes, const std::string& text);

}  // namespace zero::detail
