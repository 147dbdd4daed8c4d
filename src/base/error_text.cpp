#include "base/error_text.h"

#include "zero/error.h"

namespace zero {

std::string text_without_kind(const std::exception& error) {
  std::string text = error.what();
  const auto* own = dynamic_cast<const Error*>(&error);
  if (own == nullptr) return text;
  const std::string prefix = std::string(to_string(own->kind())) + " error: ";
  if (text.starts_with(prefix)) text.erase(0, prefix.size());
  return text;
}

}  // namespace zero
