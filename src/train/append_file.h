#pragma once
// A file that only grows.

#include <filesystem>
#include <string_view>

namespace zero::training {

/// Not for several threads.
class AppendFile {
 public:
  /// Opens or makes the file. Throws Io.
  explicit AppendFile(std::filesystem::path path);
  /// A new file: PREFIX0, or PREFIX1, ... where those are there. Throws Io.
  static AppendFile make_new(const std::filesystem::path& prefix);
  ~AppendFile();
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&&) = delete;

  /// All of it, usually in one write. Throws Io naming file and cause, also where the file was removed.
  void append(std::string_view bytes);

 private:
  AppendFile(std::filesystem::path path, int descriptor);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace zero::training
