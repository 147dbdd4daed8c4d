#include "next_steps.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace zero::tool {

std::string next_steps(const std::filesystem::path& run, bool has_tokenizer) {
  const std::string name = run.string();
  std::vector<std::pair<std::string, std::string>> lines;
  if (has_tokenizer) lines.emplace_back("zero generate " + name + " --prompt TEXT", "goes on with a text");
  lines.emplace_back("zero report " + name, "draws the run");
  lines.emplace_back("zero consolidate " + name + " DIR", "writes a model directory");
  size_t width = 0;
  for (const auto& [command, what] : lines) width = std::max(width, command.size());
  std::string text = "next:\n";
  for (const auto& [command, what] : lines)
    text += "  " + command + std::string(width + 2 - command.size(), ' ') + what + "\n";
  return text;
}

}  // namespace zero::tool
