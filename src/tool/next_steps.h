#pragma once
// What can be done with a run that has ended.

#include <filesystem>
#include <string>

namespace zero::tool {

/// Lines of a command and what it does, for a saved run. `has_tokenizer`: prompts can be read.
std::string next_steps(const std::filesystem::path& run, bool has_tokenizer);

}  // namespace zero::tool
