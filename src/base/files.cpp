#include "base/files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
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
