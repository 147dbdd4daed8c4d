#include "mesh/neighbours.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace zero::detail {

Neighbours::~Neighbours() {
  for (const auto& [rank, process] : processes_)
    if (process.descriptor >= 0) close(process.descriptor);
}

void Neighbours::add(int rank, pid_t process) {
  const auto descriptor = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  if (!processes_.emplace(rank, Process{process, descriptor}).second && descriptor >= 0) close(descriptor);
}

ProcessState Neighbours::look(int rank) const {
  const auto found = processes_.find(rank);
  if (found == processes_.end() || found->second.descriptor < 0) return ProcessState::Unknown;
  pollfd ended{found->second.descriptor, POLLIN, 0};
  if (poll(&ended, 1, 0) > 0) return ProcessState::Ended;
  std::string line;
  std::getline(std::ifstream("/proc/" + std::to_string(found->second.number) + "/stat"), line);
  // "PID (NAME) STATE ...", where the name may hold anything.
  const size_t name_end = line.rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return ProcessState::Unknown;
  const char state = line[name_end + 2];
  return state == 'T' || state == 't' ? ProcessState::Stopped : ProcessState::Runs;
}

}  // namespace zero::detail
