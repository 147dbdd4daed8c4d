#pragma once
// Makes the n-th call of a system function fail in this program. The test defines the functions in the place
// of the C library's; include this in one source file of a program only.

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace zero::testing {

enum class Call { None, Open, Write, ShortWrite, Fsync, Rename, Mkdir };

struct FailingCall {
  Call call = Call::None;
  int countdown = 0;  // calls that still succeed
  int error = 0;      // errno of the failing one
  bool failed = false;
};
inline FailingCall failing_call;

/// Arms one failure; true from has_failed() says that the program came that far.
inline void fail_call(Call call, int countdown, int error) { failing_call = {call, countdown, error, false}; }
inline bool has_failed() { return failing_call.failed; }
inline void fail_nothing() { failing_call = {}; }

inline bool must_fail(Call call) {
  if (failing_call.call != call || failing_call.failed || failing_call.countdown-- > 0) return false;
  failing_call.failed = true;
  errno = failing_call.error;
  return true;
}

}  // namespace zero::testing

extern "C" {

ssize_t write(int descriptor, const void* data, size_t bytes) {
  using namespace zero::testing;
  if (must_fail(Call::Write)) return -1;
  if (failing_call.call == Call::ShortWrite) bytes = std::min<size_t>(bytes, 7);
  return syscall(SYS_write, descriptor, data, bytes);
}

int open(const char* path, int flags, ...) {
  using namespace zero::testing;
  va_list arguments;
  va_start(arguments, flags);
  int mode = (flags & O_CREAT) ? va_arg(arguments, int) : 0;
  va_end(arguments);
  if (must_fail(Call::Open)) return -1;
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

int fsync(int descriptor) {
  using namespace zero::testing;
  return must_fail(Call::Fsync) ? -1 : static_cast<int>(syscall(SYS_fsync, descriptor));
}

int renameat2(int from_directory, const char* from, int to_directory, const char* to,
              unsigned flags) noexcept {
  using namespace zero::testing;
  if (must_fail(Call::Rename)) return -1;
  return static_cast<int>(syscall(SYS_renameat2, from_directory, from, to_directory, to, flags));
}

int rename(const char* from, const char* to) noexcept {
  using namespace zero::testing;
  if (must_fail(Call::Rename)) return -1;
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int mkdir(const char* path, mode_t mode) noexcept {
  using namespace zero::testing;
  return must_fail(Call::Mkdir) ? -1 : static_cast<int>(syscall(SYS_mkdir, path, mode));
}

}  // extern "C"
