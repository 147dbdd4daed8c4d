#pragma once
// Files as descriptors that close themselves. Every failure is an Io error with the path and the cause.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"

namespace zero::checkpoint {

enum class Links { Refuse, Follow };

class File {
 public:
  /// Makes a file that must not exist yet.
  static File create(const std::filesystem::path& path);
  /// Opens a regular file for reading. By default links are refused, so that a checkpoint cannot point
  /// outside itself.
  static File open(const std::filesystem::path& path, Links links = Links::Refuse);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;

  /// Whether writes go straight to the disk, where the file system can: aligned memory, offsets and sizes
  /// only. It saves the copy into the system's cache, which costs more time of a core than all the rest.
  void set_direct(bool direct);
  void write(std::span<const std::byte> bytes);
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  /// Asks the system to begin bringing what was written to the disk, so that less is left for the end.
  void start_writing_back(int64_t offset, int64_t bytes) const;
  /// Forces the contents to the disk and closes.
  void sync_and_close();

  /// Fills `out` from an offset. Throws Corrupt where the file ends before.
  void read_at(int64_t offset, std::span<std::byte> out) const;
  /// The same bytes where the system keeps the file: read-only, shared with everybody who maps it, and let go
  /// of when memory is short. As long as the result lives; the file may not become shorter meanwhile.
  std::shared_ptr<const std::byte> map(int64_t offset, int64_t bytes) const;
  /// Lets the system fetch further ahead than it does by itself.
  void expect_reads_in_order() const;
  /// Asks the system to read a range into memory meanwhile; of a long one it may fetch only the beginning.
  void read_ahead(int64_t offset, int64_t bytes) const;

  /// What tells this file from one put in its place later.
  struct Identity {
    int64_t bytes = 0;
    uint64_t device = 0, inode = 0;
    int64_t changed_ns = 0;
    bool operator==(const Identity&) const = default;
  };
  Identity identity() const;

 private:
  File(std::filesystem::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::filesystem::path path_;
  int descriptor_;
  bool direct_ = false;
};

/// Makes a file of many pieces, small and large, in writes of kWriteBytes at multiples of it.
class BlockWriter {
 public:
  static constexpr size_t kWriteBytes = size_t{4} << 20;

  explicit BlockWriter(const std::filesystem::path& path);
  void add(std::span<const std::byte> bytes);
  /// Bytes added so far: where the next ones come.
  int64_t position() const { return written_ + static_cast<int64_t>(filled_); }
  /// Replaces bytes that were added, at the end.
  void patch(int64_t offset, std::string bytes) { patches_.emplace_back(offset, std::move(bytes)); }
  /// Writes what is left, forces the contents to the disk and closes.
  void finish();

 private:
  struct Release {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  void write_out();

  File file_;
  std::unique_ptr<std::byte, Release> buffer_;
  size_t filled_ = 0;
  int64_t written_ = 0;
  std::vector<std::pair<int64_t, std::string>> patches_;
};

/// A whole file as text. Throws Corrupt if it is longer than `most_bytes`.
std::string read_text(const std::filesystem::path& path, int64_t most_bytes);

void write_text(const std::filesystem::path& path, std::string_view text);

/// Throws Io if the file system of `directory` has less than `bytes` free.
void require_free_space(const std::filesystem::path& directory, int64_t bytes);

}  // namespace zero::checkpoint
