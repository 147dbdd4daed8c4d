// Meshes of ranks that a launcher has started: `zero launch` with its environment, and a store that the
// launcher keeps.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "support/ranks.h"
#include "zero/error.h"
#include "zero/launch.h"
#include "zero/mesh.h"

namespace zero {
namespace {

bool is_rank() { return std::getenv("ZERO_LAUNCHER") != nullptr; }

// Starts ranks of this program that run the current test again, in a child, since launch() wants one thread.
int launch_this_test(int ranks, std::string* errors) {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  LaunchOptions options;
  options.ranks = ranks;
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string(),
                     std::string("--gtest_filter=") + info->test_suite_name() + "." + info->name()};
  std::string file = (std::filesystem::temp_directory_path() / "zero-mesh-launch-XXXXXX").string();
  int fd = mkstemp(file.data());
  pid_t pid = fork();
  if (pid == 0) {
    dup2(fd, 1);
    dup2(fd, 2);
    _exit(launch(options));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  close(fd);
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  std::filesystem::remove(file);
  *errors = text.str();
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(LaunchedRanks, JoinFromTheEnvironment) {
  if (is_rank()) {
    Mesh mesh = Mesh::from_environment();
    EXPECT_EQ(mesh.size(), 3);
    EXPECT_EQ(mesh.rendezvous().launcher, "zero");
    at::Tensor sum = at::full({1}, mesh.rank() + 1, at::kFloat);
    mesh.world().all_reduce(sum, Group::Reduce::Sum, "ranks").wait();
    EXPECT_EQ(sum.item<float>(), 6);
    return;
  }
  std::string text;
  EXPECT_EQ(launch_this_test(3, &text), 0) << text;
}

TEST(LaunchedRanks, FailureOfOneEndsAllAndIsShownLast) {
  if (is_rank()) {
    Mesh mesh = Mesh::from_environment();
    mesh.world().barrier("start");
    if (mesh.rank() == 1) {
      fprintf(stderr, "zero: rank 1: the disk is full\n");
      _exit(9);
    }
    mesh.world().barrier("never");
    return;
  }
  std::string text;
  EXPECT_EQ(launch_this_test(3, &text), 9) << text;
  EXPECT_NE(text.find("[rank 1] zero: rank 1: the disk is full\n"), std::string::npos) << text;
  EXPECT_NE(text.find("zero: rank 1 failed with exit code 9"), std::string::npos) << text;
}

// As under torchrun: the store outlives the meshes, and ranks join again after a restart.
TEST(LaunchersStore, ServesOneMeshAfterTheOther) {
  auto results = testing::collect_processes(3, [](Rendezvous rendezvous) {
    if (rendezvous.rank == 0) {  // the launcher
      c10d::TCPStoreOptions options;
      options.port = static_cast<std::uint16_t>(rendezvous.port);
      options.isServer = true;
      options.waitWorkers = false;
      options.masterListenFd = rendezvous.listen_fd;
      c10d::TCPStore store("127.0.0.1", options);
      store.wait({"done/0", "done/1"}, std::chrono::seconds(60));
      return;
    }
    rendezvous.rank -= 1;
    rendezvous.size = rendezvous.local_size = 2;
    rendezvous.external_store = true;
    for (const char* attempt : {"job.0", "job.0", "job.1"}) {
      rendezvous.attempt = attempt;
      Mesh mesh = Mesh::join(rendezvous);
      at::Tensor sum = at::full({1}, mesh.rank() + 1, at::kFloat);
      mesh.world().all_reduce(sum, Group::Reduce::Sum, "ranks").wait();
      EXPECT_EQ(sum.item<float>(), 3);
    }
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(rendezvous.port);
    c10d::TCPStore("127.0.0.1", options)
        .set("done/" + std::to_string(rendezvous.rank), std::vector<uint8_t>{1});
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.error, "");
    EXPECT_EQ(result.exit, 0);
    EXPECT_TRUE(result.failures.empty()) << result.failures[0];
  }
}

}  // namespace
}  // namespace zero
