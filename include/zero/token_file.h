#pragma once
// A text as token ids in one file: a header of 64 bytes and the ids, 2 bytes each where the vocabulary allows
// it. docs/formats.md has the layout. Files are written under another name and appear complete or not at all.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "zero/tokenizer.h"

namespace zero {

/// Writes a token file piece by piece. Not for several threads. Until publish() returns, what was at `path`
/// stays as it was; without publish() the destructor leaves no trace. Errors are Io and name file and cause
/// ("No space left on device").
class TokenFileWriter {
 public:
  /// Makes the unfinished file beside `path`. Throws Usage for a vocabulary size that is not in [1, 2^31).
  TokenFileWriter(std::filesystem::path path, const Vocabulary& vocabulary);
  ~TokenFileWriter();
  TokenFileWriter(TokenFileWriter&&) noexcept;
  TokenFileWriter& operator=(TokenFileWriter&&) noexcept;

  /// Throws Usage for an id outside of the vocabulary.
  void append(std::span<const int32_t> ids);

  int64_t size() const;

  /// Writes the header and brings everything to disk, still under the other name. append() is over then.
  void finish();

  /// finish() if that is still to do; then gives the file its name.
  void publish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A token file, memory-mapped read-only: opening costs nothing and processes on one host share its pages.
/// Cheap to copy; every function may be called from several threads. Who cuts the file while it is open gets
/// a SIGBUS.
class TokenFile {
 public:
  /// Checks the header and the length, not the ids. Throws Io (cannot be read), Corrupt (names what was
  /// expected and found, for a cut-off file in bytes) or Unsupported (another version or byte order).
  static TokenFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const;
  int64_t size() const;  // tokens
  int width() const;     // bytes of a token in the file: 2 or 4
  const Vocabulary& vocabulary() const;

  /// Throws Config, naming both, when the file was not made with this vocabulary.
  void require_vocabulary(const Vocabulary& vocabulary) const;

  /// Copies out.size() ids from `first` on. Throws Usage for a range outside of the file, Corrupt for an id
  /// outside of the vocabulary.
  void read(int64_t first, std::span<int32_t> out) const;

  /// The ids as they lie in the file; empty for a file of the other width.
  std::span<const uint16_t> tokens16() const;
  std::span<const uint32_t> tokens32() const;

  /// Reads everything: throws Corrupt when the checksum is not the header's or an id is not in the
  /// vocabulary.
  void verify() const;

 private:
  struct Impl;
  explicit TokenFile(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace zero
