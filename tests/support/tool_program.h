#pragma once
// The `zero` program in a directory, and a text for it.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "support/program.h"

namespace zero::testing {

inline ProgramResult zero_in(const std::filesystem::path& directory, std::vector<std::string> arguments,
                             ProgramOptions options = {}) {
  arguments.insert(arguments.begin(), ZERO_TOOL);
  options.directory = directory;
  return Program(arguments, options).wait();
}

/// Lines that are much alike, some 40 bytes each.
inline std::string some_text(int lines = 400) {
  std::string text;
  for (int i = 0; i < lines; ++i)
    text += "Line " + std::to_string(i) + ": the clocks were striking " + std::to_string(i * 7 % 13) + ".\n";
  return text;
}

}  // namespace zero::testing
