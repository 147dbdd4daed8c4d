#include "train/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "base/files.h"
#include "zero/error.h"

namespace zero::training {

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_errno(path_, "open");
}

AppendFile::AppendFile(std::filesystem::path path, int descriptor)
    : path_(std::move(path)), descriptor_(descriptor) {}

AppendFile AppendFile::make_new(const std::filesystem::path& prefix) {
  for (int number = 0;; ++number) {
    std::filesystem::path path = prefix.string() + std::to_string(number);
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
    if (descriptor >= 0) return {std::move(path), descriptor};
    if (errno != EEXIST) fail_errno(path, "open");
  }
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

void AppendFile::append(std::string_view bytes) {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail_errno(path_, "stat");
  require(status.st_nlink > 0, ErrorKind::Io, path_.string(),
          "the file, or the directory it was in, was removed while the run was writing it",
          "what is written now would be lost: start the run again, or go on from a checkpoint (--resume)");
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t wrote = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail_errno(path_, "write");
    done += static_cast<size_t>(wrote);
  }
}

}  // namespace zero::training
