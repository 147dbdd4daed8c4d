#pragma once
// Which part of a parameter of the whole model a rank's module holds, where a mesh has more axes than the
// data-parallel one. Plain data.

#include <cstdint>
#include <string>
#include <vector>

#include "zero/box.h"

namespace zero {

/// Ranks that differ along "dp" alone hold the same part; the engine shards it over them.
struct ParameterPart {
  std::vector<int64_t> global_shape;  // of the parameter in the whole model
  Box box;                            // of it, what the module holds: box.size is the parameter's shape there
  std::vector<std::string> replicated_over;  // axes, "dp" apart, along which all ranks hold this box
  // Boxes that the module's parameter holds beside the first, joined along the dim in which they begin
  // elsewhere: parts of queries, keys and values that one product makes. Disjoint, in the parameter's order.
  std::vector<Box> beside = {};
  // Some other rank holds this box too, counts it in norms and saves it; both get the same gradients.
  bool is_copy = false;

  /// Of what the module holds; `box`'s size where it is alone.
  std::vector<int64_t> shape() const;

  bool operator==(const ParameterPart&) const = default;
};

}  // namespace zero
