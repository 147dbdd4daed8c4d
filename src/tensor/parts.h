#pragma once
// What an engine needs to know of a parameter that is cut.

#include <vector>

#include "tensor/cut.h"
#include "zero/parameter_part.h"

namespace zero::detail {

/// This rank's part of a parameter of that shape.
ParameterPart part_description(const std::vector<int64_t>& shape, const Cut& cut, Place place);

}  // namespace zero::detail
