#pragma once
// Multi-rank tests in one program: every rank is a forked child of the test, with no launcher.
//
//   TEST(Reduce, SumsInRankOrder) {
//     run_ranks(3, [](zero::Mesh mesh) { EXPECT_EQ(mesh.size(), 3); });
//   }
//
// The parent only forks, reads and waits: it must have no threads of its own, so do not join a mesh of
// several ranks outside run_ranks and leave at::set_num_threads(1) as it is.

#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "zero/mesh.h"

namespace zero::testing {

struct RankOptions {
  RankOptions() {
    mesh.timeout = std::chrono::seconds(30);
    if (const char* transport = std::getenv("ZERO_TEST_TRANSPORT")) mesh.transport = transport;
  }

  std::chrono::milliseconds timeout{
      std::chrono::seconds(270)};  // of the whole run; then all ranks are killed, before ctest ends the test
  MeshOptions mesh;                // axes, collective timeout (here 30 s), transport ($ZERO_TEST_TRANSPORT)
  std::vector<std::string> hosts;  // of each rank, as MeshOptions::host; empty: all on one
  std::map<int, int> exits;  // rank -> exit status a test expects (128 + n for signal n); 0 where not named
};

/// What one rank left behind.
struct RankResult {
  int exit = 0;  // 0; 1: failed or threw; 128 + n: ended by signal n; -1: killed at the deadline
  std::vector<std::string> failures;  // one text for each failed expectation, "FILE:LINE: ..."
  std::string error;                  // what() of the exception that left the body; "" if none did
  std::string bytes;                  // what the rank gave to hand_back(), in order
};

/// Runs `body` on n ranks of one mesh and fails the test with "rank 2: ..." for every failed expectation,
/// every exception, every unexpected exit and every rank that is not done at the deadline. Returns each
/// rank's result.
std::vector<RankResult> run_ranks(int n, const std::function<void(Mesh)>& body,
                                  const RankOptions& options = {});

/// The same without judging: for tests in which ranks fail on purpose.
std::vector<RankResult> collect_ranks(int n, const std::function<void(Mesh)>& body,
                                      const RankOptions& options = {});

/// Forks n processes that are handed their rendezvous but have not joined: for tests of joining itself.
std::vector<RankResult> collect_processes(int n, const std::function<void(Rendezvous)>& body,
                                          const RankOptions& options = {});

/// In a rank: gives bytes to the parent (RankResult::bytes).
void hand_back(std::string_view bytes);

/// In a rank: gives a tensor's elements to the parent as raw bytes.
void hand_back(const at::Tensor& tensor);

/// In the parent: bytes handed back from a tensor, as a 1-D tensor again.
at::Tensor tensor_from_bytes(const std::string& bytes, at::ScalarType dtype);

}  // namespace zero::testing
