#pragma once
// What other programs make of the same bytes.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace zero::tool {

/// Bytes that `command` (searched in PATH), such as gzip -9, writes when it reads `file`. Nothing where the
/// program is not installed or fails.
std::optional<int64_t> packed_size(const std::vector<std::string>& command,
                                   const std::filesystem::path& file);

}  // namespace zero::tool
