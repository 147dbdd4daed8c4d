#pragma once
// Writing to a peer that died raises SIGPIPE in the writing thread, which by default ends the process without
// a word. A library must not change the process's signal handlers, so the signal is blocked in this thread
// only, and in the threads it starts meanwhile.

#include <signal.h>

#include <ctime>

namespace zero::detail {

class SigpipeBlock {
 public:
  SigpipeBlock() {
    sigemptyset(&mask_);
    sigaddset(&mask_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &mask_, &before_);
  }
  ~SigpipeBlock() {
    if (sigismember(&before_, SIGPIPE)) return;
    timespec zero{};
    if (!was_pending_) sigtimedwait(&mask_, nullptr, &zero);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeBlock(const SigpipeBlock&) = delete;
  SigpipeBlock& operator=(const SigpipeBlock&) = delete;

 private:
  sigset_t mask_, before_;
  bool was_pending_ = false;
};

}  // namespace zero::detail
