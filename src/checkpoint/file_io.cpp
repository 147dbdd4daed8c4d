#include "checkpoint/file_io.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "zero/error.h"

namespace zero::checkpoint {
namespace {

constexpr size_t kWriteAlignment = 4096;

}  // namespace

File File::create(const std::filesystem::path& path) {
  int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) fail_errno(path, "create");
  return {path, descriptor};
}

File File::open(const std::filesystem::path& path, Links links) {
  // Without O_NONBLOCK a pipe put in place of a file would block here.
  const int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC | (links == Links::Refuse ? O_NOFOLLOW : 0);
  int descriptor = ::open(path.c_str(), flags);
  if (descriptor < 0) fail_errno(path, "open");
  File file(path, descriptor);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail_errno(path, "examine");
  require(S_ISREG(status.st_mode), ErrorKind::Io, path.string(), "not a regular file");
  return file;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      direct_(other.direct_) {}

void File::set_direct(bool direct) {
  if (direct == direct_) return;
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0) fail_errno(path_, "examine");
  // Some file systems have no such writes, tmpfs for one.
  const bool done = ::fcntl(descriptor_, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
  if (!done && !direct) fail_errno(path_, "write");
  direct_ = direct && done;
}

void File::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    // What is left of a short write is not aligned; and a disk may ask for more than we align to.
    if (written < 0 && errno == EINVAL && direct_) {
      set_direct(false);
      continue;
    }
    if (written < 0) fail_errno(path_, "write");
    bytes = bytes.subspan(written);
  }
}

void File::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_errno(path_, "write");
    offset += written;
    bytes = bytes.subspan(written);
  }
}

void File::start_writing_back(int64_t offset, int64_t bytes) const {
  // A hint: where it is not understood, fsync does all of it.
  ::sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void File::sync_and_close() {
  if (::fsync(descriptor_) != 0) fail_errno(path_, "write to the disk");
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_errno(path_, "close");
}

void File::read_at(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    ssize_t got = ::pread(descriptor_, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(path_, "read");
    require(got > 0, ErrorKind::Corrupt, path_.string(),
            "the file ends at byte " + std::to_string(offset) + ", " + std::to_string(out.size()) +
                " bytes are missing");
    offset += got;
    out = out.subspan(got);
  }
}

std::shared_ptr<const std::byte> File::map(int64_t offset, int64_t bytes) const {
  const int64_t has = identity().bytes;
  require(offset >= 0 && bytes > 0 && bytes <= has && offset <= has - bytes, ErrorKind::Corrupt,
          path_.string(),
          "the file ends at byte " + std::to_string(has) + ", before " + std::to_string(bytes) +
              " bytes from " + std::to_string(offset) + " on");
  const int64_t past = offset % ::sysconf(_SC_PAGESIZE);
  const auto length = static_cast<size_t>(bytes + past);
  void* const begin = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor_, offset - past);
  if (begin == MAP_FAILED) fail_errno(path_, "map");
  return {static_cast<const std::byte*>(begin) + past,
          [begin, length](const std::byte*) { ::munmap(begin, length); }};
}

void File::expect_reads_in_order() const { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL); }

void File::read_ahead(int64_t offset, int64_t bytes) const {
  ::posix_fadvise(descriptor_, offset, bytes, POSIX_FADV_WILLNEED);
}

File::Identity File::identity() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail_errno(path_, "examine");
  return {.bytes = status.st_size,
          .device = status.st_dev,
          .inode = status.st_ino,
          .changed_ns = int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec};
}

BlockWriter::BlockWriter(const std::filesystem::path& path)
    : file_(File::create(path)),
      buffer_(static_cast<std::byte*>(std::aligned_alloc(kWriteAlignment, kWriteBytes))) {
  if (!buffer_) throw std::bad_alloc();
  file_.set_direct(true);
}

void BlockWriter::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    size_t part = std::min(bytes.size(), kWriteBytes - filled_);
    std::memcpy(buffer_.get() + filled_, bytes.data(), part);
    filled_ += part;
    bytes = bytes.subspan(part);
    if (filled_ == kWriteBytes) write_out();
  }
}

void BlockWriter::write_out() {
  if (filled_ % kWriteAlignment != 0) file_.set_direct(false);
  file_.write({buffer_.get(), filled_});
  auto bytes = static_cast<int64_t>(std::exchange(filled_, 0));
  file_.start_writing_back(written_, bytes);
  written_ += bytes;
}

void BlockWriter::finish() {
  if (filled_ > 0) write_out();
  if (!patches_.empty()) file_.set_direct(false);
  for (const auto& [offset, bytes] : patches_) file_.write_at(offset, std::as_bytes(std::span(bytes)));
  file_.sync_and_close();
}

std::string read_text(const std::filesystem::path& path, int64_t most_bytes) {
  File file = File::open(path);
  int64_t bytes = file.identity().bytes;
  require(bytes <= most_bytes, ErrorKind::Corrupt, path.string(),
          std::to_string(bytes) + " bytes, more than the " + std::to_string(most_bytes) + " allowed");
  std::string text(bytes, '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text(const std::filesystem::path& path, std::string_view text) {
  File file = File::create(path);
  file.write(std::as_bytes(std::span(text)));
  file.sync_and_close();
}

void require_free_space(const std::filesystem::path& directory, int64_t bytes) {
  struct statvfs status {};
  if (::statvfs(directory.c_str(), &status) != 0) fail_errno(directory, "examine");
  unsigned __int128 free = static_cast<unsigned __int128>(status.f_bavail) * status.f_frsize;
  if (free >= static_cast<unsigned __int128>(bytes)) return;
  fail(ErrorKind::Io, directory.string(),
       std::to_string(bytes) + " bytes to write, " + std::to_string(static_cast<uint64_t>(free)) +
           " bytes free",
       remedy_for(ENOSPC));
}

}  // namespace zero::checkpoint
