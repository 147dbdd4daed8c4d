#include "train/run_files.h"

#include <cstdio>

#include "checkpoint/file_io.h"
#include "zero/error.h"

namespace zero::training {

namespace fs = std::filesystem;

fs::path set_aside(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(path, error))) return {};
  for (int number = 1;; ++number) {
    const std::string stem = path.stem().string() + "-" + std::to_string(number);
    fs::path target = path.parent_path() / (stem + path.extension().string());
    if (fs::exists(fs::symlink_status(target, error))) continue;
    if (std::rename(path.c_str(), target.c_str()) != 0) fail_errno(path, "rename");
    return target;
  }
}

Config read_config(const fs::path& run) {
  constexpr int64_t kMostBytes = 16 << 20;
  const fs::path path = run / kConfigFile;
  return parse_config(checkpoint::read_text(path, kMostBytes), path.string());
}

}  // namespace zero::training
