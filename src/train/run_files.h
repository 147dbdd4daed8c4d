#pragma once
// Files of a run directory, replaced whole and never lost.

#include <filesystem>
#include <string>
#include <string_view>

#include "zero/config.h"

namespace zero::training {

inline constexpr const char* kConfigFile = "config.json";

/// Replaces a file's contents: written under another name, brought to the disk, renamed. Throws Io; what was
/// there before stays then.
void replace_file(const std::filesystem::path& path, std::string_view text);

/// Gives `path` another name beside it ("metrics.jsonl" becomes "metrics-1.jsonl", the first number that is
/// free) and returns that; nothing to do where there is no such file. Throws Io.
std::filesystem::path set_aside(const std::filesystem::path& path);

/// The configuration that a run directory was made with. Throws Io, Config.
Config read_config(const std::filesystem::path& run);

}  // namespace zero::training
