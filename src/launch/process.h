#pragma once
// Starting one rank's process.

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace zero::detail {

/// A file descriptor that is closed with its owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { reset(); }
  void reset();
  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A listening socket on a free port of 127.0.0.1. Throws Io.
struct Listener {
  Descriptor socket;
  int port = 0;
};
Listener listen_on_loopback();

struct ProcessOptions {
  std::vector<std::string> command;
  std::function<int()> body;             // instead of a command: run in a copy of this process
  std::vector<std::string> environment;  // all of it, "NAME=VALUE"
  pid_t group = 0;                       // process group to join; 0: one of its own
  int inherited = -1;                    // a descriptor that survives exec
  bool own_output = false;               // keep this process's standard output
};

struct Process {
  pid_t pid = -1;
  Descriptor output;  // what it writes to standard output; not open with own_output
  Descriptor error;
};

/// Starts it; returns when the program runs. Throws Config naming a program that cannot be run, Io otherwise.
Process start_process(const ProcessOptions& options);

/// This process's environment without `without`, and with `with` ("NAME=VALUE") instead of variables of the
/// same name.
std::vector<std::string> changed_environment(const std::vector<std::string>& with,
                                             const std::vector<std::string>& without);

/// Cores this process may run on, at least 1.
int available_cores();

}  // namespace zero::detail
