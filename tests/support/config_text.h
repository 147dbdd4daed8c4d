#pragma once
// Helpers of the configuration tests.

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "zero/config.h"
#include "zero/error.h"

namespace zero::test {

/// Error text of parsing `text` as the file "f"; "" if it is accepted.
inline std::string error_of(std::string_view text, std::initializer_list<std::string> overrides = {}) {
  try {
    parse_config(text, "f", std::vector<std::string>(overrides));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

inline Config parse(std::string_view text, std::initializer_list<std::string> overrides = {}) {
  return parse_config(text, "f", std::vector<std::string>(overrides));
}

}  // namespace zero::test
