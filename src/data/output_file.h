#pragma once
// A file that appears under its name complete or not at all.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace zero::data {

/// Written as "NAME.tmp-PID" in the folder of NAME; removed by the destructor unless published. Every
/// function throws Io with the file's name and the system's reason.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;

  void append(std::span<const std::byte> bytes);

  /// Overwrites bytes at `offset`, after flushing what was appended.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);

  /// Brings everything to disk and closes the file. Nothing may be written after it.
  void close();

  /// close() if that is still to do, then renames and brings the folder's entry to disk.
  void publish();

  const std::filesystem::path& path() const { return path_; }

 private:
  [[noreturn]] void fail_with(const char* what, int error) const;
  void flush();
  void write_all(const std::byte* bytes, size_t count, int64_t offset);

  std::filesystem::path path_, temporary_;
  std::vector<std::byte> buffer_;
  int fd_ = -1;
  bool published_ = false;
};

}  // namespace zero::data
