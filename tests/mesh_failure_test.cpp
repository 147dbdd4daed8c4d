// Ranks that die, sleep, throw, never come or do something else: the others say which rank it was, and soon.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "support/meeting.h"
#include "support/ranks.h"
#include "zero/error.h"
#include "zero/mesh.h"

namespace zero {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::collect_ranks;
using testing::Meeting;
using testing::RankOptions;
using testing::RankResult;
using Clock = std::chrono::steady_clock;

// Errors come within the timeout and this, or this after another rank's end. A machine that is busy with
// other things may take the slack on top.
constexpr seconds kPromise{3}, kSlack{12};
constexpr seconds kLong{60};  // a timeout that nobody should see the end of

RankOptions with_timeout(milliseconds timeout) {
  RankOptions options;
  options.mesh.timeout = timeout;
  return options;
}

void step(const Mesh& mesh, int number) {
  Group dp = mesh.group("dp");
  at::Tensor full = at::zeros({30000 * mesh.size()}), part = at::zeros({30000});
  dp.all_gather(full, part, "h." + std::to_string(number)).wait();
  dp.reduce_scatter(part, full, false, "h." + std::to_string(number)).wait();
}

void expect_words(const RankResult& result, std::initializer_list<const char*> words) {
  EXPECT_EQ(result.error.find('\n'), std::string::npos) << result.error;
  for (const char* word : words)
    EXPECT_NE(result.error.find(word), std::string::npos) << word << " is not in: " << result.error;
}

using Disturbance = std::function<void(Mesh&, const Meeting&)>;

// Runs steps until `rank` does something at step 5; the time of the others' errors is checked against
// `limit`. To the meeting all come who have failed; who is said to stay waits there for the others.
std::vector<RankResult> disturb(int ranks, int rank, const Disturbance& something, const RankOptions& options,
                                milliseconds limit, bool others_stay = false) {
  const Meeting meeting(ranks);
  return collect_ranks(
      ranks,
      [&](Mesh mesh) {
        for (int number = 0; number < 5; ++number) step(mesh, number);
        if (mesh.rank() == rank) return something(mesh, meeting);
        auto start = Clock::now();
        try {
          for (int number = 5; number < 100; ++number) step(mesh, number);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::Comm);
          EXPECT_LT(Clock::now() - start, limit);
          // From now on every operation fails at once.
          try {
            step(mesh, 200);
            ADD_FAILURE() << "the mesh goes on";
          } catch (const Error& again) {
            EXPECT_NE(std::string(again.what()).find("not started, the job has failed"), std::string::npos)
                << again.what();
          }
          others_stay ? meeting.come() : meeting.pass_by();
          throw;
        }
      },
      options);
}

void end_at_once(Mesh&, const Meeting&) { kill(getpid(), SIGKILL); }

TEST(RankDies, KilledRankIsNamedLongBeforeTheTimeout) {
  auto results = disturb(4, 2, end_at_once, with_timeout(kLong), kPromise + kSlack);
  EXPECT_EQ(results[2].exit, 128 + SIGKILL);
  for (int rank : {0, 1, 3}) {
    expect_words(results[rank], {"communication error", "in group dp",
                                 "rank 2 is gone (last seen at reduce_scatter h.4 (#10))"});
    EXPECT_TRUE(results[rank].failures.empty()) << results[rank].failures[0];
  }
}

TEST(RankDies, RankZeroTakesTheStoreAlong) {
  auto results = disturb(3, 0, end_at_once, with_timeout(kLong), kPromise + kSlack);
  for (int rank : {1, 2}) {
    expect_words(results[rank], {"rank 0 is gone"});
    EXPECT_TRUE(results[rank].failures.empty()) << results[rank].failures[0];
  }
}

TEST(RankDies, ThrowingRankIsNamed) {
  auto results = disturb(
      3, 1, [](Mesh&, const Meeting&) { throw std::runtime_error("thrown"); }, with_timeout(kLong),
      kPromise + kSlack);
  for (int rank : {0, 2}) expect_words(results[rank], {"rank 1 is gone"});
}

TEST(RankDies, ReportedReasonReachesTheOthersWhileItStillLives) {
  auto results = disturb(
      3, 1,
      [](Mesh& mesh, const Meeting& all_have_failed) {
        mesh.report_failure("I/O error: disk\nis full");
        all_have_failed.come();
      },
      with_timeout(kLong), kPromise + kSlack);
  EXPECT_EQ(results[1].error, "");
  for (int rank : {0, 2}) {
    expect_words(results[rank], {"rank 1 reported", "I/O error: disk is full"});
    EXPECT_TRUE(results[rank].failures.empty()) << results[rank].failures[0];
  }
}

TEST(RankIsLate, SleeperIsNamedAfterTheTimeout) {
  auto results = disturb(
      3, 1, [](Mesh&, const Meeting& all_have_failed) { all_have_failed.come(); }, with_timeout(seconds(4)),
      seconds(4) + kPromise + kSlack, /*others_stay=*/true);
  for (int rank : {0, 2}) {
    expect_words(results[rank], {"all_gather h.5 (#11) in group dp",
                                 "rank 1 has not arrived: it is at reduce_scatter h.4 (#10)"});
    EXPECT_TRUE(results[rank].failures.empty()) << results[rank].failures[0];
  }
  expect_words(results[0].error.find("timed out") != std::string::npos ? results[0] : results[2],
               {"timed out after 4000 ms"});
}

// Stops this process; a child of it ends it when all others have failed.
void stop(Mesh&, const Meeting& all_have_failed) {
  const pid_t stopped = getpid();
  if (fork() == 0) {
    all_have_failed.come();
    kill(stopped, SIGKILL);
    _exit(0);
  }
  raise(SIGSTOP);
}

void expect_stopped_rank_is_named(int stopped) {
  constexpr seconds kTimeout{4};
  const auto results = disturb(3, stopped, stop, with_timeout(kTimeout), kTimeout + kPromise + kSlack);
  EXPECT_EQ(results[stopped].exit, 128 + SIGKILL);
  const std::string who = "rank " + std::to_string(stopped);
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == stopped) continue;
    expect_words(results[rank], {(who + " does not answer, its process is stopped").c_str()});
    // The other one may have found out first, and be gone indeed.
    EXPECT_EQ(results[rank].error.find(who + " is gone"), std::string::npos) << results[rank].error;
    EXPECT_TRUE(results[rank].failures.empty()) << results[rank].failures[0];
  }
}

TEST(RankIsLate, StoppedRankIsNamed) { expect_stopped_rank_is_named(2); }

TEST(RankIsLate, StoppedRankZeroIsNamedThoughItKeepsTheStore) { expect_stopped_rank_is_named(0); }

// As with Ctrl-Z, which stops all ranks of a host: who has slept through its timeout has missed nothing.
TEST(SharedMemoryWaits, TimeInWhichARankWasStoppedDoesNotCount) {
  RankOptions options = with_timeout(seconds(4));
  options.mesh.transport = "shm";
  testing::run_ranks(
      2,
      [](Mesh mesh) {
        at::Tensor processes = at::empty({2}, at::kInt);
        mesh.world().all_gather(processes, at::full({1}, getpid(), at::kInt), "processes").wait();
        if (mesh.rank() == 1) {
          usleep(300'000);  // until rank 0 waits
          kill(processes[0].item<int>(), SIGSTOP);
          sleep(6);
          kill(processes[0].item<int>(), SIGCONT);
          usleep(300'000);
        }
        mesh.world().barrier("after the stop");
      },
      options);
}

TEST(RankIsLate, MessageThatNeverComes) {
  const Meeting failed(2);
  auto results = collect_ranks(
      2,
      [&](Mesh mesh) {
        if (mesh.rank() == 1) return failed.come();
        try {
          mesh.world().receive(at::zeros({4}), 1, 7, "activations").wait();
        } catch (const Error&) {
          failed.pass_by();
          throw;
        }
      },
      with_timeout(seconds(3)));
  expect_words(results[0],
               {"rank 0, receive activations in group world", "timed out after 3000 ms waiting for rank 1"});
}

struct Divergence {
  std::function<void(Group, int)> issue;
  std::vector<const char*> words;
};

void expect_divergence(const Divergence& divergence) {
  auto results = collect_ranks(
      2,
      [&](Mesh mesh) {
        step(mesh, 0);
        divergence.issue(mesh.group("dp"), mesh.rank());
      },
      with_timeout(seconds(4)));
  bool named = false;
  for (const auto& result : results) {
    EXPECT_EQ(result.exit, 1);
    bool all = true;
    for (const char* word : divergence.words) all = all && result.error.find(word) != std::string::npos;
    named = named || all;
  }
  EXPECT_TRUE(named) << results[0].error << "\n" << results[1].error;
}

TEST(RanksDiverge, InTheOperation) {
  expect_divergence({[](Group dp, int rank) {
                       if (rank == 0) dp.all_gather(at::zeros({40}), at::zeros({20}), "h.3").wait();
                       if (rank == 1)
                         dp.reduce_scatter(at::zeros({20}), at::zeros({40}), false, "h.2").wait();
                     },
                     {"all_gather h.3 (#3)", "reduce_scatter h.2 (#3)", "do different things"}});
}

TEST(RanksDiverge, InTheUnit) {
  expect_divergence({[](Group dp, int rank) {
                       dp.all_gather(at::zeros({40}), at::zeros({20}), rank == 0 ? "h.3" : "h.4").wait();
                     },
                     {"all_gather h.3 (#3)", "all_gather h.4 (#3)", "do different things"}});
}

TEST(RanksDiverge, InTheSize) {
  expect_divergence({[](Group dp, int rank) {
                       dp.all_gather(at::zeros({40 + 2 * rank}), at::zeros({20 + rank}), "h.3").wait();
                     },
                     {"(#3) of 40", "(#3) of 42", "do different things"}});
}

RankOptions two_by_two() {
  RankOptions options = with_timeout(seconds(4));
  options.mesh.axes = {{"dp", 2}, {"tp", 2}};
  return options;
}

// Runs `issue` on two by two ranks, none of which leaves before all have failed.
std::vector<RankResult> diverge(const std::function<void(const Mesh&)>& issue) {
  const Meeting failed(4);
  return collect_ranks(
      4,
      [&](const Mesh& mesh) {
        const auto start = Clock::now();
        try {
          issue(mesh);
        } catch (const Error&) {
          EXPECT_LT(Clock::now() - start, seconds(4) + kPromise + kSlack);
          failed.come();
          throw;
        }
      },
      two_by_two());
}

void sum(const Mesh& mesh, const char* axis, const char* what) {
  mesh.group(axis).all_reduce(at::zeros({20}), Group::Reduce::Sum, what).wait();
}

TEST(RanksDiverge, AlongTheTensorAxis) {
  const auto results = diverge([](const Mesh& mesh) {
    sum(mesh, "dp", "gradients");
    const bool first = mesh.group("tp").rank() == 0;
    sum(mesh, "tp", first ? "attention" : "mlp");
    sum(mesh, "tp", first ? "mlp" : "attention");
  });
  for (int rank = 0; rank < 4; ++rank) {
    const bool first = rank % 2 == 0;
    const std::string ours = first ? "attention" : "mlp", theirs = first ? "mlp" : "attention";
    expect_words(results[rank],
                 {("rank " + std::to_string(rank) + ", all_reduce " + ours + " (#1) in group tp").c_str(),
                  ("rank " + std::to_string(rank ^ 1) + " issued all_reduce " + theirs + " (#1)").c_str(),
                  "the ranks do different things", "run the same modules in the same order"});
    EXPECT_TRUE(results[rank].failures.empty()) << results[rank].failures[0];
  }
}

// Each group sees the same order, and all wait in a circle: 0 for 2 along "dp", 2 for 3 along "tp", 3 for 1,
// 1 for 0.
TEST(RanksDiverge, InTheOrderOfAxes) {
  const auto results = diverge([](const Mesh& mesh) {
    const bool dp_first = mesh.rank() == 0 || mesh.rank() == 3;
    sum(mesh, dp_first ? "dp" : "tp", "first");
    sum(mesh, dp_first ? "tp" : "dp", "second");
  });
  const int waits_for[] = {2, 0, 3, 1};
  for (int rank = 0; rank < 4; ++rank) {
    const std::string other = rank == 0 || rank == 3 ? "tp" : "dp";
    expect_words(
        results[rank],
        {("rank " + std::to_string(waits_for[rank]) +
          " has not arrived: it is at the start and waits in all_reduce first (#1) of group " + other)
             .c_str(),
         "talk along all axes in the same order"});
    EXPECT_TRUE(results[rank].failures.empty()) << results[rank].failures[0];
  }
}

TEST(Joining, RankThatNeverComesIsNamed) {
  auto results = testing::collect_processes(4, [](const Rendezvous& rendezvous) {
    if (rendezvous.rank == 2) return;
    MeshOptions options;
    options.timeout = seconds(4);
    Mesh::join(rendezvous, options);
  });
  for (int rank : {0, 1, 3}) expect_words(results[rank], {"rank 2 of 4 did not come within 4000 ms"});
}

TEST(Joining, RankZeroThatNeverComesIsNamed) {
  auto results = testing::collect_processes(2, [](Rendezvous rendezvous) {
    if (rendezvous.rank == 0) return;
    MeshOptions options;
    options.timeout = seconds(1);
    Mesh::join(rendezvous, options);
  });
  expect_words(results[1], {"rank 1: rank 0 did not answer on 127.0.0.1:", "within 1000 ms"});
}

// The kernel accepts connections for rank 0, which says nothing: like any server that is no store.
TEST(Joining, ServerThatNeverAnswersIsNamed) {
  const Meeting failed(2);
  auto results = testing::collect_processes(2, [&](const Rendezvous& rendezvous) {
    if (rendezvous.rank == 0) return failed.come();
    MeshOptions options;
    options.timeout = seconds(5);
    const auto start = Clock::now();
    try {
      Mesh::join(rendezvous, options);
      ADD_FAILURE() << "joined nobody";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Comm);
      EXPECT_LT(Clock::now() - start, options.timeout + kPromise + kSlack);
      failed.pass_by();
      throw;
    }
  });
  expect_words(results[1], {"rank 1: rank 0 did not answer on 127.0.0.1:", "within 5000 ms"});
  EXPECT_TRUE(results[1].failures.empty()) << results[1].failures[0];
}

TEST(Joining, PortInUseIsNamed) {
  auto results = testing::collect_processes(2, [](Rendezvous rendezvous) {
    if (rendezvous.rank != 0) return;
    rendezvous.listen_fd = -1;  // the harness's socket goes on listening
    Mesh::join(rendezvous);
  });
  expect_words(results[0], {"config error: rank 0: port ", " is in use", "MASTER_PORT"});
}

TEST(Joining, WrongDescriptorIsRefused) {
  auto results = testing::collect_processes(1, [](Rendezvous rendezvous) {
    rendezvous.size = 2;
    rendezvous.listen_fd = 0;
    Mesh::join(rendezvous);
  });
  expect_words(results[0], {"ZERO_LISTEN_FD=0 is not a listening socket"});
}

}  // namespace
}  // namespace zero
