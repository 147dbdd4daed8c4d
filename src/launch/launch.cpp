#include "zero/launch.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "launch/output.h"
#include "launch/process.h"
#include "zero/error.h"

namespace zero {
namespace {

using detail::Descriptor;
using detail::LineMerger;
using detail::Process;
using Clock = std::chrono::steady_clock;

/// Signals of this process as readable events while it lives.
class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGCHLD, SIGTSTP, SIGPIPE}) sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    events_ = Descriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    require(events_.open(), ErrorKind::Io, "starting ranks",
            std::string("cannot watch signals: ") + strerror(errno));
  }
  ~Signals() {
    // Of a reader that has gone the caller learns when it writes itself.
    const sigset_t broken_pipe = only(SIGPIPE);
    const timespec now{};
    if (!sigismember(&before_, SIGPIPE)) sigtimedwait(&broken_pipe, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  int fd() const { return events_.get(); }
  /// The next signal that came, 0 if none.
  int next() {
    signalfd_siginfo info;
    return read(events_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }
  /// Does to this process what SIGTSTP does by default, so that the shell sees that signal; returns once it
  /// has been continued.
  void stop_here() {
    const sigset_t stop = only(SIGTSTP);
    raise(SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &stop, nullptr);
    pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  }

 private:
  static sigset_t only(int signal) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    return set;
  }

  sigset_t before_;
  Descriptor events_;
};

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return;  // nobody reads any more; the ranks go on
    if (n > 0) done += n;
  }
}

std::string describe_exit(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return "failed with exit code " + std::to_string(info.si_status);
  const char* name = sigabbrev_np(info.si_status);
  return "was ended by signal " + std::to_string(info.si_status) +
         (name ? std::string(" (SIG") + name + ")" : "");
}

class Job {
 public:
  explicit Job(const LaunchOptions& options)
      : options_(options),
        output_(options.ranks, options.merge_window),
        error_(options.ranks, options.merge_window) {
    start();
  }
  ~Job() { end_group(); }

  int run() {
    while (running_ > 0) {
      look_at_children();
      if (running_ == 0) break;
      wait_for_events(Clock::time_point::max());
    }
    // What the ranks left behind dies here, before the group's number can be anybody else's.
    end_group();
    auto deadline = Clock::now() + std::chrono::seconds(2);
    while (pipes_open() && Clock::now() < deadline) wait_for_events(deadline);
    for (int rank = 0; rank < options_.ranks; ++rank) {
      output_.close(rank, Clock::now());
      error_.close(rank, Clock::now());
    }
    print();
    return conclude();
  }

 private:
  std::vector<std::string> environment(int rank, const detail::Listener& listener) const {
    const std::string number = std::to_string(rank), size = std::to_string(options_.ranks);
    std::vector<std::string> with = {"RANK=" + number,        "LOCAL_RANK=" + number,
                                     "WORLD_SIZE=" + size,    "LOCAL_WORLD_SIZE=" + size,
                                     "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(listener.port),
                                     "ZERO_LAUNCHER=1"};
    if (rank == 0) with.push_back("ZERO_LISTEN_FD=" + std::to_string(listener.socket.get()));
    if (!std::getenv("OMP_NUM_THREADS"))
      with.push_back("OMP_NUM_THREADS=" +
                     std::to_string(std::max(1, detail::available_cores() / options_.ranks)));
    with.insert(with.end(), options_.environment.begin(), options_.environment.end());
    return detail::changed_environment(with, {"ZERO_LISTEN_FD", "TORCHELASTIC_USE_AGENT_STORE"});
  }

  void start() {
    detail::Listener listener = detail::listen_on_loopback();
    try {
      for (int rank = 0; rank < options_.ranks; ++rank) {
        detail::ProcessOptions process;
        process.command = options_.command;
        process.body = options_.body;
        process.environment = environment(rank, listener);
        process.group = group_;
        process.inherited = rank == 0 ? listener.socket.get() : -1;
        process.own_output = rank == 0 && options_.lead_rank_reports;
        processes_.push_back(detail::start_process(process));
        ended_.push_back(false);
        ++running_;
        if (rank == 0) group_ = processes_[0].pid;
        if (process.own_output) output_.close(0, Clock::now());
      }
    } catch (...) {
      end_group();
      throw;
    }
  }

  // Kills what is left of the group and reaps the ranks. Until then the first rank, even dead, keeps the
  // group's number.
  void end_group() {
    if (group_ > 0) kill(-group_, SIGKILL);
    for (auto& process : processes_)
      while (process.pid > 0 && waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    for (auto& process : processes_) process.pid = -1;
    group_ = 0;
  }

  // A rank that somebody has stopped is woken: only then can it act on the signal.
  void signal_group(int signal) {
    if (group_ > 0) kill(-group_, signal);
    if (group_ > 0) kill(-group_, SIGCONT);
    if (kill_time_ == Clock::time_point::max()) kill_time_ = Clock::now() + options_.grace;
  }

  // The ranks are no job of the shell's: what it does to this process is done to them here.
  void stop_together() {
    kill(-group_, SIGTSTP);
    const auto stopped = Clock::now();
    signals_.stop_here();
    if (kill_time_ != Clock::time_point::max()) kill_time_ += Clock::now() - stopped;
    kill(-group_, SIGCONT);
  }

  void on_signal(int signal) {
    if (signal == SIGCHLD || signal == SIGPIPE) return;
    if (group_ <= 0) return;
    if (signal == SIGTSTP) return stop_together();
    if (signal == SIGUSR1) {
      kill(-group_, signal);
      return;
    }
    if (signal_ != 0) {
      kill(-group_, SIGKILL);
      return;
    }
    signal_ = signal;
    signal_group(signal);
  }

  // Notes which ranks have ended, without reaping them.
  void look_at_children() {
    for (int rank = 0; rank < options_.ranks; ++rank) {
      if (ended_[rank]) continue;
      siginfo_t info{};
      if (waitid(P_PID, processes_[rank].pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
        continue;
      ended_[rank] = true;
      --running_;
      bool failed = info.si_code != CLD_EXITED || info.si_status != 0;
      if (!failed || first_failed_ >= 0) continue;
      first_failed_ = rank;
      failure_ = info;
      if (running_ > 0 && signal_ == 0) signal_group(SIGTERM);
    }
    if (running_ > 0 && Clock::now() >= kill_time_) kill(-group_, SIGKILL);
  }

  bool pipes_open() const {
    return std::any_of(processes_.begin(), processes_.end(),
                       [](const Process& p) { return p.output.open() || p.error.open(); });
  }

  // Waits for output, a signal or the next time something is due, and deals with it.
  void wait_for_events(Clock::time_point limit) {
    std::vector<pollfd> polls = {{signals_.fd(), POLLIN, 0}};
    for (auto& process : processes_)
      for (Descriptor* pipe : {&process.output, &process.error}) polls.push_back({pipe->get(), POLLIN, 0});
    limit = std::min(
        {limit, output_.next(), error_.next(), running_ > 0 ? kill_time_ : Clock::time_point::max()});
    int timeout = -1;
    if (limit != Clock::time_point::max()) {
      auto left = std::chrono::ceil<std::chrono::milliseconds>(limit - Clock::now()).count();
      timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 60000));
    }
    if (poll(polls.data(), polls.size(), timeout) > 0) {
      if (polls[0].revents)
        while (int signal = signals_.next()) on_signal(signal);
      for (size_t i = 1; i < polls.size(); ++i)
        if (polls[i].revents) read_from(static_cast<int>((i - 1) / 2), (i - 1) % 2 == 0);
    }
    print();
  }

  void read_from(int rank, bool standard_output) {
    Descriptor& pipe = standard_output ? processes_[rank].output : processes_[rank].error;
    LineMerger& merger = standard_output ? output_ : error_;
    char buffer[65536];
    ssize_t n = read(pipe.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) return;
    if (n > 0) {
      merger.add(rank, std::string_view(buffer, n), Clock::now());
      return;
    }
    pipe.reset();
    merger.close(rank, Clock::now());
  }

  void print() {
    write_all(STDOUT_FILENO, output_.take(Clock::now()));
    write_all(STDERR_FILENO, error_.take(Clock::now()));
  }

  // The exit code, and the last words on what went wrong.
  int conclude() {
    if (first_failed_ < 0) return 0;
    if (signal_ != 0) return 128 + signal_;
    const std::string who = "rank " + std::to_string(first_failed_);
    std::string text = "zero: " + who + " " + describe_exit(failure_);
    const auto& lines = error_.last_lines(first_failed_);
    // Said once more where others' lines have come between.
    const bool repeats = !lines.empty() && !error_.ends_with(first_failed_);
    text += lines.empty() ? "; it printed no error\n" : repeats ? "; its last words:\n" : "\n";
    if (repeats)
      for (const auto& line : lines) text += "[" + who + "] " + line + "\n";
    write_all(STDERR_FILENO, text);
    return failure_.si_code == CLD_EXITED ? failure_.si_status : 128 + failure_.si_status;
  }

  const LaunchOptions& options_;
  Signals signals_;  // before the first child
  LineMerger output_, error_;
  std::vector<Process> processes_;
  std::vector<bool> ended_;
  pid_t group_ = 0;
  int running_ = 0;
  int signal_ = 0;         // the first that this process was sent
  int first_failed_ = -1;  // rank
  siginfo_t failure_{};
  Clock::time_point kill_time_ = Clock::time_point::max();
};

}  // namespace

int launch(const LaunchOptions& options) {
  require(options.ranks >= 1, ErrorKind::Config, "--ranks",
          std::to_string(options.ranks) + " is less than 1");
  require(options.ranks <= 4096, ErrorKind::Config, "--ranks",
          std::to_string(options.ranks) + " ranks on one host are more than 4096");
  const bool program = !options.command.empty() && !options.command[0].empty();
  require(program || options.body, ErrorKind::Config, "launch", "no program to start");
  require(!program || !options.body, ErrorKind::Config, "launch",
          "a program and a function to run, of which only one can be");
  return Job(options).run();
}

}  // namespace zero
