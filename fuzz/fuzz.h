#pragma once
// What the targets have in common: what they read may answer with zero::Error; whatever else leaves a target,
// and what the sanitizers find, is a finding.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "zero/error.h"

namespace zero::fuzz {

inline void check(bool ok) {
  if (!ok) std::abort();
}

/// Runs `read`; an error of the library is an answer. It is on one line, but for those that list problems.
template <class Read>
void attempt(Read read, bool on_one_line = true) {
  try {
    read();
  } catch (const Error& error) {
    check(error.kind() != ErrorKind::Internal);
    check(!on_one_line || std::string_view(error.what()).find('\n') == std::string_view::npos);
  }
}

/// A file of this process in memory, with these bytes.
inline const std::filesystem::path& in_file(std::string_view bytes, const std::string& ending = "") {
  static const std::filesystem::path path = [&] {
    const char* memory = "/dev/shm";
    const auto folder =
        std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
    static struct Remove {
      std::filesystem::path path;
      ~Remove() {
        std::error_code ignored;
        std::filesystem::remove(path, ignored);
      }
    } remove{folder / ("zero-fuzz-" + std::to_string(::getpid()) + ending)};
    return remove.path;
  }();
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  return path;
}

}  // namespace zero::fuzz

#define ZERO_FUZZ(function)                                                 \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    function(std::string_view(reinterpret_cast<const char*>(data), size));  \
    return 0;                                                               \
  }
