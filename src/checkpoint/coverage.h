#pragma once
// Whether the pieces of a tensor hold each of its elements exactly once.

#include <optional>
#include <string>

#include "zero/checkpoint.h"

namespace zero::checkpoint {

/// The order of pieces in an index: by box, then by begin.
bool comes_before(const BoxRange& a, const BoxRange& b);

/// What is wrong with the pieces' order or coverage, such as "no piece holds element 3" (of the flattened
/// tensor); nothing where they are right. Each piece must be inside the shape and hold an element. Takes
/// n log n time for n pieces, whatever they are: boxes that split a tensor in so many ways that it would take
/// more are a problem too.
std::optional<std::string> coverage_problem(const StoredTensor& tensor);

}  // namespace zero::checkpoint
