#pragma once
// A temporary directory on a disk, where the one for temporary files may be in memory.

#include <linux/magic.h>
#include <sys/vfs.h>

#include "support/temporary_directory.h"

namespace zero::testing {

inline bool is_in_memory(const std::filesystem::path& directory) {
  struct statfs system = {};
  return ::statfs(directory.c_str(), &system) == 0 && system.f_type == TMPFS_MAGIC;
}

class DiskDirectory : public TemporaryDirectory {
 public:
  DiskDirectory()
      : TemporaryDirectory(is_in_memory(std::filesystem::temp_directory_path())
                               ? std::filesystem::path("/var/tmp")
                               : std::filesystem::temp_directory_path()) {}
};

}  // namespace zero::testing
