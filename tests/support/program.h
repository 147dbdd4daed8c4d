#pragma once
// Runs a program as a child and collects what it says. For tests without threads.

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace zero::testing {

struct ProgramOptions {
  std::filesystem::path directory = {};                 // to run in; empty: here
  std::map<std::string, std::string> environment = {};  // added to this process's
  int64_t file_bytes = -1;                              // no file may grow beyond; -1: no limit
  std::chrono::seconds timeout{120};                    // then it is killed, and the test fails
};

struct ProgramResult {
  int exit = -1;  // 128 + n: ended by signal n
  std::string output, error;
  std::string all() const { return output + error; }
};

/// A child with pipes at its standard output and error.
class Program {
 public:
  Program(const std::vector<std::string>& command, const ProgramOptions& options = {})
      : deadline_(std::chrono::steady_clock::now() + options.timeout) {
    int out[2], err[2];
    if (pipe(out) != 0 || pipe(err) != 0) throw std::runtime_error("no pipes");
    pid_ = fork();
    if (pid_ < 0) throw std::runtime_error("no process");
    if (pid_ == 0) {
      dup2(out[1], STDOUT_FILENO);
      dup2(err[1], STDERR_FILENO);
      for (const int fd : {out[0], out[1], err[0], err[1]}) close(fd);
      become(command, options);
    }
    close(out[1]);
    close(err[1]);
    pipes_[0] = out[0];
    pipes_[1] = err[0];
  }
  ~Program() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    for (const int fd : pipes_)
      if (fd >= 0) close(fd);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  void signal(int number) const { kill(pid_, number); }

  /// Reads until `done` says so about what was said so far, the program ends, or time is up.
  bool wait_until(const std::function<bool()>& done) {
    while (!done()) {
      if (!read_some()) return done();
    }
    return true;
  }

  const ProgramResult& result_so_far() const { return result_; }

  ProgramResult wait() {
    while (read_some()) {
    }
    int status = 0;
    if (std::chrono::steady_clock::now() >= deadline_) {
      ADD_FAILURE() << "not done in time and killed; it said: " << result_.all();
      kill(pid_, SIGKILL);
    }
    waitpid(pid_, &status, 0);
    pid_ = -1;
    for (const int fd : pipes_)
      if (fd >= 0) close(fd);
    result_.exit = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return result_;
  }

 private:
  [[noreturn]] static void become(const std::vector<std::string>& command, const ProgramOptions& options) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) _exit(126);
    for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
    if (options.file_bytes >= 0) {
      const rlimit limit{static_cast<rlim_t>(options.file_bytes), static_cast<rlim_t>(options.file_bytes)};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    execvp(argv[0], argv.data());
    _exit(127);
  }

  // False when there is nothing more to read, or time is up.
  bool read_some() {
    pollfd polls[2] = {{pipes_[0], POLLIN, 0}, {pipes_[1], POLLIN, 0}};
    if (pipes_[0] < 0 && pipes_[1] < 0) return false;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    poll(polls, 2, static_cast<int>(std::min<int64_t>(left.count(), 100)));
    for (int i = 0; i < 2; ++i) {
      if (pipes_[i] < 0 || polls[i].revents == 0) continue;
      char buffer[8192];
      const ssize_t got = read(pipes_[i], buffer, sizeof buffer);
      if (got > 0) {
        (i == 0 ? result_.output : result_.error).append(buffer, static_cast<size_t>(got));
      } else {
        close(pipes_[i]);
        pipes_[i] = -1;
      }
    }
    return true;
  }

  pid_t pid_ = -1;
  int pipes_[2] = {-1, -1};
  std::chrono::steady_clock::time_point deadline_;
  ProgramResult result_;
};

}  // namespace zero::testing
