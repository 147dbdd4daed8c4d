#pragma once
// Whole files in memory.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace zero::data {

/// The bytes of a file. Throws Io naming the file and the system's reason, Unsupported when it is longer than
/// `most`.
std::string read_file(const std::filesystem::path& path, uint64_t most);

/// The text of a file, unpacked when it is gzip (by its first bytes; several members are joined).
/// Throws as read_file; Corrupt for a broken or cut-off gzip file.
std::string read_text(const std::filesystem::path& path, uint64_t most);

/// A file of JSON, parsed as parse_json does. Throws as read_file, Corrupt for what is none.
nlohmann::json read_json(const std::filesystem::path& path);

}  // namespace zero::data
