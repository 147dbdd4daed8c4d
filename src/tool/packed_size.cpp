#include "packed_size.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "base/files.h"

namespace zero::tool {
namespace {

int64_t count_bytes(int from) {
  std::array<char, 65536> buffer;
  int64_t bytes = 0;
  for (ssize_t got = 1; got > 0;) {
    got = ::read(from, buffer.data(), buffer.size());
    if (got > 0) bytes += got;
  }
  return bytes;
}

}  // namespace

std::optional<int64_t> packed_size(const std::vector<std::string>& command,
                                   const std::filesystem::path& file) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno(file, "make a pipe for");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, file.c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const bool started = ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  const int64_t bytes = started ? count_bytes(ends[0]) : 0;
  ::close(ends[0]);
  int status = 0;
  if (!started || ::waitpid(pid, &status, 0) != pid || status != 0) return std::nullopt;
  return bytes;
}

}  // namespace zero::tool
