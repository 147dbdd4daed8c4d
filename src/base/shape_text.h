#pragma once
// Shapes in messages.

#include <cstdint>
#include <span>
#include <string>

namespace zero {

/// "[2, 3]"
std::string shape_text(std::span<const int64_t> shape);

}  // namespace zero
