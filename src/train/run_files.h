#pragma once
// Files of a run directory, which are never lost.

#include <filesystem>

#include "zero/config.h"

namespace zero::training {

inline constexpr const char* kConfigFile = "config.json";

/// Gives `path` another name beside it ("metrics.jsonl" becomes "metrics-1.jsonl", the first number that is
/// free) and returns that; nothing to do where there is no such file. Throws Io.
std::filesystem::path set_aside(const std::filesystem::path& path);

/// The configuration that a run directory was made with. Throws Io, Config.
Config read_config(const std::filesystem::path& run);

}  // namespace zero::training
