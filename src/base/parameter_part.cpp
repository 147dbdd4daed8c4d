#include "zero/parameter_part.h"

namespace zero {

std::vector<int64_t> ParameterPart::shape() const {
  std::vector<int64_t> shape = box.size;
  for (const Box& other : beside)
    for (size_t dim = 0; dim < shape.size(); ++dim)
      if (other.begin[dim] != box.begin[dim]) shape[dim] += other.size[dim];
  return shape;
}

}  // namespace zero
