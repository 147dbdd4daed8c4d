#include "data/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "zero/error.h"

namespace zero::data {
namespace {
constexpr size_t kBuffer = 1 << 20;
constexpr int64_t kAtEnd = -1;
}  // namespace

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
  std::error_code ignored;
  require(!path_.filename().empty() && !std::filesystem::is_directory(path_, ignored), ErrorKind::Io,
          path_.string(), "it is a directory", "name a file to write");
  temporary_ = path_;
  temporary_ += ".tmp-" + std::to_string(getpid());
  // What stands there is a dead process's, of the same id. It may be a link: never written through.
  ::unlink(temporary_.c_str());
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_with("create", errno);
  buffer_.reserve(kBuffer);
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!published_ && !temporary_.empty()) ::unlink(temporary_.c_str());
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      buffer_(std::move(other.buffer_)),
      fd_(std::exchange(other.fd_, -1)),
      published_(other.published_) {}

void OutputFile::fail_with(const char* what, int error) const {
  fail(ErrorKind::Io, path_.string(), std::string("cannot ") + what + " it: " + std::strerror(error),
       error == ENOSPC ? "free some space; what was there before is unchanged"
                       : "what was there before is unchanged");
}

void OutputFile::write_all(const std::byte* bytes, size_t count, int64_t offset) {
  while (count > 0) {
    const ssize_t written =
        offset == kAtEnd ? ::write(fd_, bytes, count) : ::pwrite(fd_, bytes, count, offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_with("write", errno);
    bytes += written;
    count -= static_cast<size_t>(written);
    if (offset != kAtEnd) offset += written;
  }
}

void OutputFile::flush() {
  write_all(buffer_.data(), buffer_.size(), kAtEnd);
  buffer_.clear();
}

void OutputFile::append(std::span<const std::byte> bytes) {
  require(fd_ >= 0, ErrorKind::Usage, path_.string(), "append after close");
  if (buffer_.size() + bytes.size() > kBuffer) flush();
  if (bytes.size() > kBuffer) return write_all(bytes.data(), bytes.size(), kAtEnd);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void OutputFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  require(fd_ >= 0, ErrorKind::Usage, path_.string(), "write after close");
  flush();
  write_all(bytes.data(), bytes.size(), static_cast<int64_t>(offset));
}

void OutputFile::close() {
  if (fd_ < 0) return;
  flush();
  if (::fsync(fd_) != 0) fail_with("sync", errno);
  if (::close(std::exchange(fd_, -1)) != 0) fail_with("close", errno);
}

void OutputFile::publish() {
  require(!published_, ErrorKind::Usage, path_.string(), "published twice");
  close();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_with("rename", errno);
  published_ = true;
  const auto folder = path_.has_parent_path() ? path_.parent_path() : std::filesystem::path(".");
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_with("open the folder of", errno);
  const int rc = ::fsync(fd), error = errno;
  ::close(fd);
  // Some network file systems cannot sync a folder; their rename is durable by itself.
  if (rc != 0 && error != EINVAL) fail_with("sync the folder of", error);
}

}  // namespace zero::data
