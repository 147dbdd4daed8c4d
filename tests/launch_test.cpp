// Launching small shell programs: environment, exit codes, output, signals, and that nothing is left behind.
#include "zero/launch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "zero/error.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

std::string read_file(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Outcome {
  int code = -1;  // 300: launch() threw, and `error` ends with its text
  std::string output, error;
};

class Launch : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "zero-launch-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder = pattern;
  }
  void TearDown() override { fs::remove_all(folder); }

  // launch() in a child process of its own; `meanwhile` gets its number.
  Outcome run(LaunchOptions options, const std::function<void(pid_t)>& meanwhile = nullptr) {
    fs::path out = folder / "out", err = folder / "err";
    pid_t pid = fork();
    if (pid == 0) {
      dup2(open(out.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_APPEND, 0600), 1);
      dup2(open(err.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_APPEND, 0600), 2);
      try {
        _exit(launch(options));
      } catch (const Error& error) {
        dprintf(2, "%s", error.what());
        _exit(99);
      }
    }
    if (meanwhile) meanwhile(pid);
    int status = 0;
    waitpid(pid, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(out), read_file(err)};
  }

  // Grace and merge window are so long that a busy machine changes nothing.
  Outcome shell(int ranks, const std::string& script, const std::function<void(pid_t)>& meanwhile = nullptr,
                milliseconds grace = std::chrono::seconds(30)) {
    LaunchOptions options;
    options.ranks = ranks;
    options.command = {"sh", "-c", script};
    options.grace = grace;
    options.merge_window = std::chrono::seconds(10);
    options.environment = {"FOLDER=" + folder.string()};
    return run(options, meanwhile);
  }

  void wait_for_files(int count) {
    for (int i = 0; i < 3000; ++i) {
      int found = 0;
      for (const auto& entry : fs::directory_iterator(folder)) found += entry.path().extension() == ".pid";
      if (found >= count) return;
      std::this_thread::sleep_for(milliseconds(10));
    }
    ADD_FAILURE() << "the ranks did not start";
  }

  // Every process whose number a script left in FOLDER/*.pid is gone: no process and no zombie.
  void expect_none_left(int count) {
    int found = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() != ".pid") continue;
      ++found;
      std::string pid = std::to_string(std::stoi(read_file(entry.path())));
      for (int i = 0; i < 1000 && fs::exists("/proc/" + pid); ++i)
        std::this_thread::sleep_for(milliseconds(10));
      EXPECT_FALSE(fs::exists("/proc/" + pid)) << pid << ": " << read_file("/proc/" + pid + "/stat");
    }
    EXPECT_EQ(found, count);
  }

  fs::path folder;
};

const char* const kWritePid = "echo $$ > $FOLDER/$RANK.tmp; mv $FOLDER/$RANK.tmp $FOLDER/$RANK.pid; ";

TEST_F(Launch, RanksKnowWhoTheyAre) {
  Outcome outcome = shell(
      3, "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR; test -n \"$OMP_NUM_THREADS\"");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  for (const char* line :
       {"[rank 0] 0 0 3 3 127.0.0.1\n", "[rank 1] 1 1 3 3 127.0.0.1\n", "[rank 2] 2 2 3 3 127.0.0.1\n"})
    EXPECT_NE(outcome.output.find(line), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.error, "");
}

TEST_F(Launch, RankZeroAloneHoldsTheListeningSocket) {
  Outcome outcome = shell(
      2, "test $RANK = 1 -a -z \"$ZERO_LISTEN_FD\" || readlink /proc/self/fd/$ZERO_LISTEN_FD | cut -d: -f1");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.output, "[rank 0] socket\n");
}

TEST_F(Launch, EqualLinesAppearOnceAndStreamsStayApart) {
  Outcome outcome = shell(4, "echo same; echo trouble >&2; test $RANK = 2 && echo mine; exit 0");
  EXPECT_EQ(outcome.output, "same\n[rank 2] mine\n");
  EXPECT_EQ(outcome.error, "trouble\n");
}

TEST_F(Launch, FirstFailureIsShownLastAndItsCodeKept) {
  Outcome outcome =
      shell(3, "trap 'echo leaving >&2; exit 3' TERM; " + std::string(kWritePid) +
                   "if [ $RANK = 1 ]; then "
                   "while [ ! -e $FOLDER/0.pid -o ! -e $FOLDER/2.pid ]; do sleep 0.01; done; "
                   "echo first >&2; echo the cause >&2; exit 7; fi; while :; do sleep 0.05; done");
  EXPECT_EQ(outcome.code, 7);
  EXPECT_NE(outcome.error.find("leaving"), std::string::npos) << outcome.error;
  const std::string end =
      "zero: rank 1 failed with exit code 7; its last words:\n[rank 1] first\n[rank 1] the cause\n";
  ASSERT_GE(outcome.error.size(), end.size());
  EXPECT_EQ(outcome.error.substr(outcome.error.size() - end.size()), end);
  expect_none_left(3);
}

TEST_F(Launch, SignalOfARankIsNamed) {
  Outcome outcome = shell(2, "test $RANK = 1 && kill -SEGV $$; sleep 60");
  EXPECT_EQ(outcome.code, 128 + SIGSEGV);
  EXPECT_NE(outcome.error.find("zero: rank 1 was ended by signal 11 (SIGSEGV); it printed no error\n"),
            std::string::npos)
      << outcome.error;
}

TEST_F(Launch, RanksThatIgnoreSigtermAreKilled) {
  Outcome outcome =
      shell(2,
            "test $RANK = 1 && trap '' TERM; " + std::string(kWritePid) +
                "if [ $RANK = 0 ]; then while [ ! -e $FOLDER/1.pid ]; do sleep 0.01; done; exit 4; fi; "
                "while :; do sleep 0.05; done",
            nullptr, milliseconds(500));
  EXPECT_EQ(outcome.code, 4);
  expect_none_left(2);
}

class Signal : public Launch, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(All, Signal, ::testing::Values(SIGINT, SIGTERM, SIGHUP));

TEST_P(Signal, ReachesEveryRankOnceAndLeavesNoneBehind) {
  // Each rank has a child of its own, which must go too.
  Outcome outcome =
      shell(3,
            "trap 'echo got it; exit 5' INT TERM HUP; sh -c 'echo $$ > $FOLDER/c$RANK.pid; sleep 60' & " +
                std::string(kWritePid) + "while :; do sleep 0.05; done",
            [&](pid_t launcher) {
              wait_for_files(6);
              kill(launcher, GetParam());
            });
  EXPECT_EQ(outcome.code, 128 + GetParam());
  EXPECT_EQ(outcome.output, "got it\n");
  expect_none_left(6);
}

TEST_F(Launch, SignalThatRanksTurnIntoSuccessIsSuccess) {
  Outcome outcome =
      shell(2, "trap 'echo saved; exit 0' TERM; " + std::string(kWritePid) + "while :; do sleep 0.05; done",
            [&](pid_t launcher) {
              wait_for_files(2);
              kill(launcher, SIGTERM);
            });
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.output, "saved\n");
}

TEST_F(Launch, SecondSignalKillsAtOnce) {
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"sh", "-c", "trap '' INT; " + std::string(kWritePid) + "while :; do sleep 0.05; done"};
  options.grace = std::chrono::minutes(5);
  options.environment = {"FOLDER=" + folder.string()};
  Outcome outcome = run(options, [&](pid_t launcher) {
    wait_for_files(2);
    // Two that come at once may arrive as one.
    for (siginfo_t ended{}; ended.si_pid == 0;) {
      kill(launcher, SIGINT);
      std::this_thread::sleep_for(milliseconds(100));
      ASSERT_EQ(waitid(P_PID, static_cast<id_t>(launcher), &ended, WEXITED | WNOHANG | WNOWAIT), 0);
    }
  });
  EXPECT_EQ(outcome.code, 128 + SIGINT);
  expect_none_left(2);
}

char state_of(pid_t process) {
  const std::string stat = read_file("/proc/" + std::to_string(process) + "/stat");
  const size_t name_end = stat.rfind(") ");
  return name_end == std::string::npos ? '?' : stat[name_end + 2];
}

TEST_F(Launch, CtrlZStopsTheRanksAndContinuingContinuesThem) {
  const auto ranks_are = [&](bool stopped) {
    for (int i = 0; i < 3000; ++i) {
      int as_wanted = 0;
      for (const char* name : {"0.pid", "1.pid"})
        as_wanted += (state_of(std::stoi(read_file(folder / name))) == 'T') == stopped;
      if (as_wanted == 2) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return false;
  };
  Outcome outcome = shell(
      2, std::string(kWritePid) + "while [ ! -e $FOLDER/end ]; do sleep 0.05; done; echo ended",
      [&](pid_t launcher) {
        setpgid(launcher, launcher);  // as a shell does with a job: a group nobody controls is never stopped
        wait_for_files(2);
        for (int round = 0; round < 2; ++round) {
          kill(launcher, SIGTSTP);
          int status = 0;
          ASSERT_EQ(waitpid(launcher, &status, WUNTRACED), launcher);
          ASSERT_TRUE(WIFSTOPPED(status)) << status;
          EXPECT_EQ(WSTOPSIG(status), SIGTSTP);
          EXPECT_TRUE(ranks_are(/*stopped=*/true));
          kill(launcher, SIGCONT);
          EXPECT_TRUE(ranks_are(/*stopped=*/false));
        }
        std::ofstream(folder / "end") << "now";
      });
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_EQ(outcome.output, "ended\n");
}

TEST_F(Launch, RanksThatAreStoppedCanStillBeEnded) {
  const auto start = std::chrono::steady_clock::now();
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"sh", "-c", std::string(kWritePid) + "while :; do sleep 0.05; done"};
  options.grace = std::chrono::minutes(5);
  options.environment = {"FOLDER=" + folder.string()};
  Outcome outcome = run(options, [&](pid_t launcher) {
    wait_for_files(2);
    kill(std::stoi(read_file(folder / "1.pid")), SIGSTOP);
    kill(launcher, SIGTERM);
  });
  EXPECT_EQ(outcome.code, 128 + SIGTERM);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  expect_none_left(2);
}

// A terminal that stops jobs in the background when they write, and rank 0 that writes to it.
TEST_F(Launch, ATerminalThatStopsBackgroundJobsDoesNotStopRanks) {
  int terminal = -1;
  const pid_t launcher = forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(launcher, 0);
  if (launcher == 0) {
    termios modes{};
    tcgetattr(STDOUT_FILENO, &modes);
    modes.c_lflag |= TOSTOP;
    tcsetattr(STDOUT_FILENO, TCSANOW, &modes);
    LaunchOptions options;
    options.ranks = 2;
    options.command = {"sh", "-c", "test $RANK = 0 && echo written; exit 0"};
    options.lead_rank_reports = true;
    try {
      _exit(launch(options));
    } catch (const Error&) {
      _exit(99);
    }
  }
  std::string output;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (char chunk[256]; std::chrono::steady_clock::now() < deadline;) {
    pollfd ready{terminal, POLLIN, 0};
    if (poll(&ready, 1, 100) <= 0) continue;
    const ssize_t n = read(terminal, chunk, sizeof chunk);
    if (n <= 0) break;  // EIO: all that had it open have ended
    output.append(chunk, static_cast<size_t>(n));
  }
  int status = 0;
  pid_t ended = 0;  // a process closes its files a little before it can be waited for
  while ((ended = waitpid(launcher, &status, WNOHANG)) == 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(milliseconds(5));
  if (ended != launcher) {
    ADD_FAILURE() << "a rank was stopped";
    kill(launcher, SIGKILL);
    waitpid(launcher, &status, 0);
  }
  close(terminal);
  EXPECT_NE(output.find("written"), std::string::npos) << output;
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(Launch, ReadersThatGoEndNobody) {
  for (const bool lead : {false, true}) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t launcher = fork();
    if (launcher == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      LaunchOptions options;
      options.ranks = 2;
      options.command = {"sh", "-c",
                         "trap '' PIPE; echo first; while [ ! -e $FOLDER/go ]; do sleep 0.02; done; "
                         "echo second 2>/dev/null; echo third 2>/dev/null; : > $FOLDER/$RANK.done; exit 0"};
      options.lead_rank_reports = lead;
      options.environment = {"FOLDER=" + folder.string()};
      _exit(launch(options));
    }
    close(ends[1]);
    char first = 0;
    EXPECT_EQ(read(ends[0], &first, 1), 1);
    close(ends[0]);
    std::ofstream(folder / "go") << "now";
    int status = 0;
    waitpid(launcher, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    for (const char* name : {"0.done", "1.done", "go"}) EXPECT_TRUE(fs::remove(folder / name)) << name;
  }
}

TEST_F(Launch, RanksDieWithTheLauncher) {
  Outcome outcome = shell(2, std::string(kWritePid) + "exec sleep 60", [&](pid_t launcher) {
    wait_for_files(2);
    kill(launcher, SIGKILL);
  });
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  expect_none_left(2);
}

TEST_F(Launch, ManyLinesDoNotDeadlock) {
  Outcome outcome =
      shell(3, "i=0; while [ $i -lt 3000 ]; do echo line $i; echo error $i $RANK >&2; i=$((i+1)); done");
  EXPECT_EQ(outcome.code, 0);
  size_t lines = std::count(outcome.output.begin(), outcome.output.end(), '\n');
  EXPECT_GE(lines, 3000u);
  EXPECT_LE(lines, 9000u);
  EXPECT_EQ(std::count(outcome.error.begin(), outcome.error.end(), '\n'), 9000);
}

TEST_F(Launch, ProgramThatHoldsThePipeOpenIsNotWaitedFor) {
  // In a session of its own before the rank ends: what is left of the rank's group is killed then.
  Outcome outcome = shell(2,
                          "setsid sh -c 'echo $$ > $FOLDER/s$RANK; exec sleep 100' & "
                          "until [ -s $FOLDER/s$RANK ]; do sleep 0.01; done; echo done");
  EXPECT_EQ(outcome.output, "done\n");
  for (const char* name : {"s0", "s1"})
    EXPECT_EQ(kill(std::stoi(read_file(folder / name)), SIGKILL), 0) << "it had ended before the launcher";
}

TEST_F(Launch, LeadRankWritesItself) {
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"sh", "-c",
                     "test $RANK = 0 && printf '10%%\\r20%%'; test $RANK = 1 && echo aside; exit 0"};
  options.lead_rank_reports = true;
  Outcome outcome = run(options);
  EXPECT_EQ(outcome.code, 0);
  EXPECT_NE(outcome.output.find("10%\r20%"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("[rank 1] aside\n"), std::string::npos) << outcome.output;
}

TEST_F(Launch, StandardInputIsEmpty) { EXPECT_EQ(shell(2, "cat; echo end").output, "end\n"); }

TEST_F(Launch, BodyRunsInCopiesOfThisProcess) {
  const int sealed = open("/dev/null", O_RDONLY | O_CLOEXEC), passed = open("/dev/null", O_RDONLY);
  setenv("ZERO_LISTEN_FD", "77", 1);
  LaunchOptions options;
  options.ranks = 2;
  options.environment = {"EXTRA=more"};
  int copied = 5;
  options.body = [&] {
    const std::string rank = std::getenv("RANK"), size = std::getenv("WORLD_SIZE");
    const char* listening = std::getenv("ZERO_LISTEN_FD");
    std::printf("%s of %s, %s\n", rank.c_str(), size.c_str(), std::getenv("EXTRA"));
    const bool listens = listening && fcntl(std::atoi(listening), F_GETFD) == 0;
    if (listens != (rank == "0")) return 10;
    if (fcntl(sealed, F_GETFD) >= 0 || fcntl(passed, F_GETFD) < 0) return 11;
    if (std::getchar() != EOF) return 12;
    return ++copied == 6 ? 0 : 13;
  };
  Outcome outcome = run(options);
  unsetenv("ZERO_LISTEN_FD");
  EXPECT_EQ(outcome.code, 0) << outcome.error;
  EXPECT_NE(outcome.output.find("[rank 0] 0 of 2, more\n"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("[rank 1] 1 of 2, more\n"), std::string::npos) << outcome.output;
  EXPECT_EQ(copied, 5);
  close(sealed);
  close(passed);
}

TEST_F(Launch, BodyThatFailsEndsTheJob) {
  LaunchOptions options;
  options.ranks = 3;
  options.grace = milliseconds(500);
  options.body = [] {
    if (std::string(std::getenv("RANK")) != "1") pause();
    throw std::runtime_error("the cause");
    return 0;
  };
  Outcome outcome = run(options);
  EXPECT_EQ(outcome.code, 1);
  // Nothing came between, so it is said once.
  const std::string end = "[rank 1] the cause\nzero: rank 1 failed with exit code 1\n";
  EXPECT_TRUE(outcome.error.ends_with(end)) << outcome.error;
}

TEST_F(Launch, BadRequestsAreRefused) {
  LaunchOptions options;
  options.ranks = 2;
  options.command = {"/nonexistent/program"};
  Outcome outcome = run(options);
  EXPECT_EQ(outcome.code, 99);
  EXPECT_NE(outcome.error.find("config error: /nonexistent/program: cannot be started: No such file"),
            std::string::npos)
      << outcome.error;
  options.command = {folder.string()};
  EXPECT_NE(run(options).error.find("Permission denied"), std::string::npos);
  options.command = {};
  EXPECT_THROW(launch(options), Error);
  options.command = {"true"};
  options.body = [] { return 0; };
  EXPECT_THROW(launch(options), Error) << "a program and a function";
  options.body = nullptr;
  for (int ranks : {0, -3, 100000}) {
    options.ranks = ranks;
    EXPECT_THROW(launch(options), Error);
  }
}

}  // namespace
}  // namespace zero
