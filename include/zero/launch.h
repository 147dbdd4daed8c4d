#pragma once
// Starting several ranks of a program on this host. No tensors, no threads: usable before LibTorch is
// touched.

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace zero {

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> command;      // program (searched in PATH) and its arguments
  std::vector<std::string> environment;  // further "NAME=VALUE" for every rank
  // Instead of a command: what each rank runs in a copy of this process (fork without exec), so that
  // libraries are loaded and initialised once for all ranks. Returns the exit code; what it throws ends the
  // rank with code
  // 1. Libraries do not read their environment again: OMP_NUM_THREADS has no effect on one that is loaded.
  std::function<int()> body;
  // Rank 0 writes to this process's standard output itself, at once and unmarked, and sees its terminal: for
  // programs in which rank 0 alone reports. Otherwise all output is merged as launch() says.
  bool lead_rank_reports = false;

  std::chrono::milliseconds merge_window{100};  // how long a line waits for the same line of the other ranks
  std::chrono::milliseconds grace{5000};        // from SIGTERM to SIGKILL
};

/// Runs the ranks and waits for them. Each has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
/// MASTER_PORT (a free port of 127.0.0.1; rank 0 gets the listening socket itself as ZERO_LISTEN_FD, so that
/// nobody can take it), and OMP_NUM_THREADS (cores / ranks, at least 1) where that is not set; standard input
/// is empty.
///
/// Output: a line that all ranks print within the merge window appears once, any other is marked "[rank 2]
/// ...". What rank 0 ends with a carriage return passes through, that of other ranks is dropped.
///
/// When a rank fails the others get SIGTERM, after `grace` SIGKILL; the last lines of standard error of the
/// rank that failed first are repeated at the end, and its exit code is returned, 128 + n for a rank that
/// signal n ended. SIGINT, SIGTERM and SIGHUP to this process go to all ranks once; a second one kills them.
/// SIGUSR1 goes to all ranks each time. SIGTSTP (Ctrl-Z) stops all ranks and then this process; continuing it
/// (fg, bg) continues them. Ranks ignore SIGTTOU, so `stty tostop` does not stop one that writes to the
/// terminal itself. Where nobody reads this process's output any more, output is dropped and the ranks go on.
/// The ranks are a process group of their own, which is empty when this returns and dies with this process.
/// Returns 0 if all ranks did; after signal n without another failure 128 + n.
///
/// Must be called while the process has one thread. Throws Config for ranks < 1, neither or both of a command
/// and a body, or a program that cannot be started (named); Io where the system refuses processes, pipes or
/// sockets.
int launch(const LaunchOptions& options);

}  // namespace zero
