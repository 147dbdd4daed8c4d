#pragma once
// Whole files in memory.

#include <cstdint>
#include <filesystem>
#include <string>

namespace zero::data {

/// The bytes of a file. Throws Io naming the file and the system's reason, Unsupported when it is longer than
/// `most`.
std::string read_file(const std::filesystem::path& path, uint64_t most);

/// The text of a file, unpacked when it is gzip (by its first bytes; several members are joined).
/// Throws as read_file; Corrupt for a broken or cut-off gzip file.
std::string read_text(const std::filesystem::path& path, uint64_t most);

}  // namespace zero::data
