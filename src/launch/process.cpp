#include "launch/process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "zero/error.h"

namespace zero::detail {
namespace {

[[noreturn]] void system_failed(const char* what) {
  fail(ErrorKind::Io, "starting ranks", std::string(what) + ": " + strerror(errno));
}

struct Pipe {
  Descriptor read, write;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) system_failed("cannot make a pipe");
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const auto& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// What the child needs, made before fork: where it executes a program it may only make system calls.
struct ChildPlan {
  std::vector<char*> arguments, environment;
  const std::function<int()>* body;  // null: executes a program
  pid_t parent, group;
  int inherited, output, error, status;
};

/// Leaves open what exec would.
void close_what_exec_closes() {
  std::vector<int> open;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    open.push_back(std::atoi(entry.path().filename().c_str()));
  for (int fd : open)
    if (int flags = fcntl(fd, F_GETFD); flags >= 0 && (flags & FD_CLOEXEC)) close(fd);
}

/// What exec would do to this copy of the launcher, as far as the ranks can tell; then the rank's work. Ends
/// as a program does, without unwinding: the objects of the launcher's functions are not this process's.
[[noreturn]] void run_body(const ChildPlan& plan) {
  int code = 1;
  try {
    close_what_exec_closes();
    clearenv();
    for (char* entry : plan.environment)
      if (entry) putenv(entry);
    code = (*plan.body)();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::exit(code);
}

[[noreturn]] void run_child(const ChildPlan& plan) {
  auto give_up = [&] {
    int cause = errno;
    [[maybe_unused]] ssize_t written = write(plan.status, &cause, sizeof cause);
    _exit(127);
  };
  setpgid(0, plan.group);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != plan.parent) _exit(127);  // the launcher died before the line above
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // A rank is in the background for the terminal: with `stty tostop` its first line would stop it for good.
  signal(SIGTTOU, SIG_IGN);
  int input = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (input < 0 || dup2(input, STDIN_FILENO) < 0) give_up();
  if (plan.output >= 0 && dup2(plan.output, STDOUT_FILENO) < 0) give_up();
  if (dup2(plan.error, STDERR_FILENO) < 0) give_up();
  if (plan.inherited >= 0) fcntl(plan.inherited, F_SETFD, 0);
  if (plan.body) run_body(plan);
  execvpe(plan.arguments[0], plan.arguments.data(), plan.environment.data());
  give_up();
  _exit(127);
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.fd_;
    other.fd_ = -1;
  }
  return *this;
}

void Descriptor::reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Listener listen_on_loopback() {
  Listener listener{Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), 0};
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener.socket.open() || bind(listener.socket.get(), generic, length) != 0 ||
      listen(listener.socket.get(), SOMAXCONN) != 0 ||
      getsockname(listener.socket.get(), generic, &length) != 0)
    system_failed("cannot listen on 127.0.0.1");
  listener.port = ntohs(address.sin_port);
  return listener;
}

Process start_process(const ProcessOptions& options) {
  Pipe status = make_pipe();
  Pipe error = make_pipe();
  Pipe output;
  if (!options.own_output) output = make_pipe();
  ChildPlan plan{pointers(options.command),
                 pointers(options.environment),
                 options.body ? &options.body : nullptr,
                 getpid(),
                 options.group,
                 options.inherited,
                 output.write.get(),
                 error.write.get(),
                 status.write.get()};
  if (options.body) std::fflush(nullptr);  // or both processes would write what is buffered
  pid_t pid = fork();
  if (pid < 0) system_failed("cannot fork");
  if (pid == 0) run_child(plan);
  setpgid(pid, options.group);  // in the parent too: whichever comes first
  status.write.reset();
  int cause = 0;
  ssize_t got;
  while ((got = read(status.read.get(), &cause, sizeof cause)) < 0 && errno == EINTR) {
  }
  if (got == sizeof cause)
    fail(ErrorKind::Config, options.command[0], std::string("cannot be started: ") + strerror(cause),
         "check the name of the program");
  return {pid, std::move(output.read), std::move(error.read)};
}

std::vector<std::string> changed_environment(const std::vector<std::string>& with,
                                             const std::vector<std::string>& without) {
  auto name_of = [](const std::string& entry) { return entry.substr(0, entry.find('=')); };
  std::vector<std::string> gone = without;
  for (const auto& entry : with) gone.push_back(name_of(entry));
  std::vector<std::string> result = with;
  for (char** entry = environ; entry && *entry; ++entry)
    if (std::find(gone.begin(), gone.end(), name_of(*entry)) == gone.end()) result.emplace_back(*entry);
  return result;
}

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

}  // namespace zero::detail
