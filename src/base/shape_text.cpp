#include "base/shape_text.h"

namespace zero {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t size : shape) text.append(text.size() > 1 ? ", " : "").append(std::to_string(size));
  return text + "]";
}

}  // namespace zero
