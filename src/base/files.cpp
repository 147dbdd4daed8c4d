#include "base/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <system_error>

#include "zero/error.h"

namespace zero {

std::string_view remedy_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free disk space or choose another directory";
    case EFBIG:
      return "raise the limit on file sizes (ulimit -f)";
    case EACCES:
    case EPERM:
    case EROFS:
      return "check who may write there";
    case ENOENT:
      return "check the path";
    case ELOOP:
      return "a checkpoint holds regular files only";
    default:
      return "";
  }
}

void fail_errno(const std::filesystem::path& path, std::string_view action) {
  const int error = errno;
  fail(ErrorKind::Io, path.string(),
       "cannot " + std::string(action) + ": " + std::generic_category().message(error), remedy_for(error));
}

std::string read_small_file(const std::filesystem::path& path, std::string_view remedy) {
  constexpr size_t kMostBytes = 1 << 20;
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_errno(path, "open");
  std::string text(kMostBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) fail_errno(path, "read");
  text.resize(static_cast<size_t>(file.gcount()));
  require(text.size() <= kMostBytes, ErrorKind::Io, path.string(), "is larger than a megabyte", remedy);
  return text;
}

void sync_directory(const std::filesystem::path& directory) {
  const char* path = directory.empty() ? "." : directory.c_str();
  const int descriptor = ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_errno(directory, "open");
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  // Some file systems know no fsync of directories; their renames are in order anyway.
  if (result != 0 && error != EINVAL) fail_errno(directory, "write to the disk");
}

}  // namespace zero
