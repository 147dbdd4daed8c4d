#pragma once
// The processes of the ranks on this host, whom the kernel knows better than any heartbeat does.

#include <sys/types.h>

#include <map>

namespace zero::detail {

enum class ProcessState {
  Unknown,  // on another host, or the kernel does not say
  Runs,
  Stopped,  // by SIGSTOP, Ctrl-Z or a debugger
  Ended,
};

class Neighbours {
 public:
  Neighbours() = default;
  ~Neighbours();
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;

  /// While that process surely lives. The descriptor kept for it survives the number's next owner.
  void add(int rank, pid_t process);
  /// Thread safe once all have been added.
  ProcessState look(int rank) const;

 private:
  struct Process {
    pid_t number;
    int descriptor;  // pidfd; -1 on kernels before 5.3
  };
  std::map<int, Process> processes_;
};

}  // namespace zero::detail
