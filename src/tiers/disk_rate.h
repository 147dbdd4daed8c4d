#pragma once
// What a directory's disk can do now.

#include <cstdint>
#include <filesystem>
#include <string>

#include "tiers/disk_file.h"

namespace zero::tiers {

struct DiskRate {
  double read = 0, write = 0;  // bytes a second
};

/// Writes and reads so many bytes one after the other, many blocks under way, in a file of its own. `options`
/// as for a DiskFile, whose bytes are not looked at. Throws what DiskFile does.
DiskRate measure_disk(DiskFileOptions options, int64_t bytes = int64_t{128} << 20);

/// Free for this user, bytes. Throws Config or Io, naming `key`, for a directory that cannot hold a rank's
/// file: none, in memory (tmpfs) or not writable.
int64_t free_disk_bytes(const std::filesystem::path& directory, const std::string& key);

}  // namespace zero::tiers
