#pragma once
// What the system says of files, as errors.

#include <filesystem>
#include <string>
#include <string_view>

namespace zero {

/// Throws Io for the current errno: "PATH: cannot ACTION: CAUSE; what to do".
[[noreturn]] void fail_errno(const std::filesystem::path& path, std::string_view action);

/// What to do about an error of the system's; "" where that is not known.
std::string_view remedy_for(int error);

/// The bytes of a file of at most a megabyte, as descriptions are. Throws Io for what cannot be read and for
/// more bytes than that, with this remedy.
std::string read_small_file(const std::filesystem::path& path, std::string_view remedy);

/// Forces a directory's entries to the disk. The parent_path() of a bare name, which is empty, is the current
/// directory.
void sync_directory(const std::filesystem::path& directory);

}  // namespace zero
