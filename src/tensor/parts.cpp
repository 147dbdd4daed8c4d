#include "tensor/parts.h"

namespace zero::detail {

ParameterPart part_description(const std::vector<int64_t>& shape, const Cut& cut, Place place) {
  ParameterPart part{shape, {}, {}};
  for (const auto& [begin, size] : pieces_of(cut, place)) {
    Box box = Box::whole(shape);
    box.begin[static_cast<size_t>(cut.dim)] = begin;
    box.size[static_cast<size_t>(cut.dim)] = size;
    if (part.box == Box{})
      part.box = box;
    else
      part.beside.push_back(box);
  }
  return part;
}

}  // namespace zero::detail
