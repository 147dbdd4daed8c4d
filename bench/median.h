#pragma once

#include <algorithm>
#include <vector>

namespace zero::bench {

/// Of an even number the greater of the two in the middle. At least one value.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace zero::bench
