#pragma once
// Files and directories that appear under their name complete or not at all, and replace nothing of another
// kind.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace zero {

/// What a file may replace: older files of its own kind.
struct OutputKind {
  const char* name;                   // "a token file"
  bool (*is)(std::string_view head);  // by the first bytes of a file, 64 where it has as many
};

/// Throws Config unless nothing stands at `path`, or an empty file, or one of this kind.
void require_replaceable(const std::filesystem::path& path, const OutputKind& kind);

/// Something being made as "NAME.zero-tmp", beside where it is to stand. A lock tells it from what a killed
/// process has left, which the next one with this name takes away; while another process is at it, a second
/// one is refused.
class UnfinishedOutput {
 public:
  enum class Type { File, Directory };
  /// Throws Io.
  UnfinishedOutput(std::filesystem::path target, Type type);
  /// Removes it unless it was published.
  ~UnfinishedOutput();
  UnfinishedOutput(UnfinishedOutput&& other) noexcept;
  UnfinishedOutput& operator=(UnfinishedOutput&&) = delete;

  const std::filesystem::path& target() const { return target_; }
  const std::filesystem::path& path() const { return path_; }
  /// Of the file; of the directory only for its lock.
  int descriptor() const { return descriptor_; }

  /// Gives it its name and brings that to the disk; its contents are there already. Throws Io.
  void publish();

 private:
  bool make();
  void remove_abandoned();
  bool is_still_there() const;

  std::filesystem::path target_, path_;
  Type type_;
  int descriptor_ = -1;
  bool removes_ = false;
};

/// Every function throws Io with the file's name and the system's reason; until publish() returns, what was
/// there stays.
class OutputFile {
 public:
  /// Where `kind` is given, throws Config if something else stands there; publish() looks once more.
  explicit OutputFile(std::filesystem::path path, const OutputKind* kind = nullptr);

  void append(std::span<const std::byte> bytes);

  /// Overwrites bytes at `offset`, after flushing what was appended.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);

  /// Brings everything to disk. Nothing may be written after it.
  void close();

  /// close() if that is still to do, then renames and brings the folder's entry to disk.
  void publish();

  const std::filesystem::path& path() const { return output_.target(); }

 private:
  [[noreturn]] void fail_with(const char* what, int error) const;
  void flush();
  void write_all(const std::byte* bytes, size_t count, int64_t offset);

  UnfinishedOutput output_;
  const OutputKind* kind_;
  std::vector<std::byte> buffer_;
  bool closed_ = false;
};

/// A file's contents at once.
void replace_file(const std::filesystem::path& path, std::string_view text);

}  // namespace zero
