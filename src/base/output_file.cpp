#include "base/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/files.h"
#include "zero/error.h"

namespace zero {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBuffer = 1 << 20;
constexpr size_t kHeadBytes = 64;
constexpr int64_t kAtEnd = -1;
constexpr const char* kUnchanged = "what was there before is unchanged";

std::string head_of(const fs::path& path) {
  // Without O_NONBLOCK a pipe put in place of the file would block here.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) fail_errno(path, "open");
  std::array<char, kHeadBytes> bytes{};
  ssize_t got = 0;
  do got = ::read(descriptor, bytes.data(), bytes.size());
  while (got < 0 && errno == EINTR);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  if (got < 0) fail_errno(path, "read");
  return std::string(bytes.data(), got);
}

}  // namespace

void require_replaceable(const fs::path& path, const OutputKind& kind) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) return;
  constexpr const char* kRemedy = "name another file, or take that one away";
  require(!fs::is_directory(status), ErrorKind::Config, path.string(), "it is a directory",
          "name a file to write");
  require(fs::is_regular_file(status), ErrorKind::Config, path.string(), "it is no regular file", kRemedy);
  if (fs::file_size(path, error) == 0 && !error) return;
  require(kind.is(head_of(path)), ErrorKind::Config, path.string(),
          "it exists and is not " + std::string(kind.name) + ": it would be lost", kRemedy);
}

UnfinishedOutput::UnfinishedOutput(fs::path target, Type type) : target_(std::move(target)), type_(type) {
  path_ = target_;
  path_ += ".zero-tmp";
  // Another process may take it for abandoned between its making and its lock; then it is made anew.
  constexpr int kMostTries = 8;
  for (int tries = 0; tries < kMostTries; ++tries) {
    if (make()) return;
    if (errno != EEXIST) fail_errno(target_, "create");
    remove_abandoned();
  }
  fail(ErrorKind::Io, target_.string(), "another process is writing it",
       "wait for it, or name another place");
}

// False with errno EEXIST: something is in the way.
bool UnfinishedOutput::make() {
  if (type_ == Type::File) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } else if (::mkdir(path_.c_str(), 0777) == 0) {
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  if (descriptor_ < 0) return false;
  // Where the file system knows no locks, what lies there is always taken for abandoned.
  const bool locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  removes_ = locked && is_still_there();
  if (removes_) return true;
  ::close(std::exchange(descriptor_, -1));
  errno = EEXIST;
  return false;
}

bool UnfinishedOutput::is_still_there() const {
  struct stat own {
  }, named{};
  return ::fstat(descriptor_, &own) == 0 && ::lstat(path_.c_str(), &named) == 0 &&
         own.st_ino == named.st_ino && own.st_dev == named.st_dev;
}

void UnfinishedOutput::remove_abandoned() {
  // What is not ours to open, a link for one, has no writer.
  const int kind = type_ == Type::File ? O_WRONLY | O_NONBLOCK : O_RDONLY | O_DIRECTORY;
  const int old = ::open(path_.c_str(), kind | O_NOFOLLOW | O_CLOEXEC);
  const bool in_use = old >= 0 && ::flock(old, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  std::error_code error;
  if (!in_use) fs::remove_all(path_, error);
  if (old >= 0) ::close(old);
  require(!in_use, ErrorKind::Io, target_.string(), "another process is writing it",
          "wait for it, or name another place");
  require(!error, ErrorKind::Io, path_.string(),
          "cannot remove what was left unfinished: " + error.message());
}

UnfinishedOutput::~UnfinishedOutput() {
  std::error_code ignored;
  if (removes_ && is_still_there()) fs::remove_all(path_, ignored);
  if (descriptor_ >= 0) ::close(descriptor_);
}

UnfinishedOutput::UnfinishedOutput(UnfinishedOutput&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::move(other.path_)),
      type_(other.type_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      removes_(std::exchange(other.removes_, false)) {}

void UnfinishedOutput::publish() {
  if (type_ == Type::Directory) sync_directory(path_);
  if (std::rename(path_.c_str(), target_.c_str()) != 0) fail_errno(path_, "rename to " + target_.string());
  removes_ = false;
  sync_directory(target_.parent_path());
}

OutputFile::OutputFile(fs::path path, const OutputKind* kind)
    : output_(
          [&] {
            std::error_code ignored;
            require(!path.filename().empty() && !fs::is_directory(path, ignored), ErrorKind::Io,
                    path.string(), "it is a directory", "name a file to write");
            if (kind) require_replaceable(path, *kind);
            return std::move(path);
          }(),
          UnfinishedOutput::Type::File),
      kind_(kind) {
  buffer_.reserve(kBuffer);
}

void OutputFile::fail_with(const char* what, int error) const {
  fail(ErrorKind::Io, path().string(), std::string("cannot ") + what + " it: " + std::strerror(error),
       error == ENOSPC ? "free some space; " + std::string(kUnchanged) : kUnchanged);
}

void OutputFile::write_all(const std::byte* bytes, size_t count, int64_t offset) {
  const int fd = output_.descriptor();
  while (count > 0) {
    const ssize_t written = offset == kAtEnd ? ::write(fd, bytes, count) : ::pwrite(fd, bytes, count, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with("write", errno);
    bytes += written;
    count -= written;
    if (offset != kAtEnd) offset += written;
  }
}

void OutputFile::flush() {
  write_all(buffer_.data(), buffer_.size(), kAtEnd);
  buffer_.clear();
}

void OutputFile::append(std::span<const std::byte> bytes) {
  require(!closed_, ErrorKind::Usage, path().string(), "append after close");
  if (buffer_.size() + bytes.size() > kBuffer) flush();
  if (bytes.size() > kBuffer) return write_all(bytes.data(), bytes.size(), kAtEnd);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  require(!closed_, ErrorKind::Usage, path().string(), "write after close");
  flush();
  write_all(bytes.data(), bytes.size(), static_cast<int64_t>(offset));
}

void OutputFile::close() {
  if (std::exchange(closed_, true)) return;
  flush();
  if (::fsync(output_.descriptor()) != 0) fail_with("sync", errno);
}

void OutputFile::publish() {
  close();
  if (kind_) require_replaceable(path(), *kind_);
  output_.publish();
}

void replace_file(const fs::path& path, std::string_view text) {
  OutputFile file(path);
  file.append(std::as_bytes(std::span(text)));
  file.publish();
}

}  // namespace zero
