#pragma once
// One forked rank's word to another, past the mesh: what a test orders by it does not depend on time.

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>

namespace zero::testing {

/// Made before the ranks are forked.
class SignalPipe {
 public:
  SignalPipe() {
    if (pipe(ends_) != 0) throw std::runtime_error("cannot make a pipe");
  }
  ~SignalPipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  void give() const {
    if (write(ends_[1], "!", 1) != 1) throw std::runtime_error("cannot write into a pipe");
  }

  /// Takes one signal; false when none came in that time.
  bool take(std::chrono::milliseconds patience) const {
    pollfd ready{ends_[0], POLLIN, 0};
    char signal = 0;
    return poll(&ready, 1, static_cast<int>(patience.count())) == 1 && read(ends_[0], &signal, 1) == 1;
  }

 private:
  int ends_[2];
};

}  // namespace zero::testing
