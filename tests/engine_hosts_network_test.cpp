// Ranks in two network namespaces, joined by one link: what the kernel counts on it, against the plan.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <thread>

#include "support/ranks.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
namespace nn = torch::nn;

/// Two namespaces with an end of a link each; gone with this object.
class TwoNetworks {
 public:
  TwoNetworks() {
    is_there_ = ip("netns add " + name(0)) && ip("netns add " + name(1)) &&
                ip("link add " + end(0) + " netns " + name(0) + " type veth peer name " + end(1) + " netns " +
                   name(1));
    for (const int host : {0, 1})
      is_there_ = is_there_ &&
                  ip("-n " + name(host) + " addr add " + address(host) + "/24 dev " + end(host)) &&
                  ip("-n " + name(host) + " link set lo up") &&
                  ip("-n " + name(host) + " link set " + end(host) + " up");
  }
  ~TwoNetworks() {
    for (const int host : {0, 1}) ip("netns del " + name(host));
  }
  TwoNetworks(const TwoNetworks&) = delete;
  TwoNetworks& operator=(const TwoNetworks&) = delete;

  bool is_there() const { return is_there_; }
  std::string address(int host) const { return "10.213.77." + std::to_string(host + 1); }

  /// Moves this process into a namespace; call it before it has threads.
  void enter(int host) const {
    const int space = open(("/var/run/netns/" + name(host)).c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(space, 0);
    ASSERT_EQ(setns(space, CLONE_NEWNET), 0);
    close(space);
  }

  /// Bytes that have left this process's host over the link.
  int64_t sent(int host) const {
    std::ifstream devices("/proc/thread-self/net/dev");
    for (std::string line; std::getline(devices, line);) {
      const size_t colon = line.find(':');
      if (colon == std::string::npos || line.substr(0, colon).find(end(host)) == std::string::npos) continue;
      std::istringstream numbers(line.substr(colon + 1));
      int64_t number = 0;
      for (int column = 0; column < 9; ++column) numbers >> number;
      return number;
    }
    return -1;
  }

 private:
  static bool ip(const std::string& arguments) {
    return std::system(("ip " + arguments + " >/dev/null 2>&1").c_str()) == 0;
  }
  static std::string name(int host) {
    return "zero" + std::to_string(getpid_of_test()) + "n" + std::to_string(host);
  }
  static std::string end(int host) {
    return "zr" + std::to_string(getpid_of_test() % 1000000) + "e" + std::to_string(host);
  }
  static pid_t getpid_of_test() {
    static const pid_t pid = getpid();  // first called by the parent
    return pid;
  }

  bool is_there_ = false;
};

TEST(EngineHostsNetwork, TheLinkCarriesWhatThePlanSays) {
  const TwoNetworks networks;
  if (!networks.is_there()) GTEST_SKIP() << "no network namespaces: needs root and iproute2's ip";
  constexpr int kSteps = 5;
  const auto results = collect_processes(4, [&](zero::Rendezvous rendezvous) {
    const int host = rendezvous.rank / 2;
    networks.enter(host);
    rendezvous.address = networks.address(0);
    rendezvous.listen_fd = -1;
    rendezvous.port = 29533;  // nobody else is in this network
    zero::MeshOptions options;
    options.timeout = std::chrono::seconds(60);
    options.host = host == 0 ? "north" : "south";
    const zero::Mesh mesh = zero::Mesh::join(rendezvous, options);
    for (const int stage : {0, 2, 3}) {
      torch::manual_seed(1);
      nn::Sequential net(nn::Linear(512, 512), nn::Linear(512, 512), nn::Linear(512, 512));
      zero::Engine engine(*net, zero::SGD{.lr = 1e-3}, {.stage = stage}, mesh);
      const auto train = [&](int steps) {
        for (int step = 0; step < steps; ++step) {
          engine.backward(engine.forward([&] {
            return net->forward(torch::ones({1, 512})).square().mean();
          }));
          engine.step();
        }
        mesh.world().barrier("steps");
      };
      train(2);
      const int64_t before = networks.sent(host);
      mesh.world().barrier("read");
      train(kSteps);
      const int64_t sent = networks.sent(host) - before;
      const int64_t planned = kSteps * engine.plan().network[static_cast<size_t>(host)].sent_bytes;
      EXPECT_GT(planned, 10 << 20);
      // Beside them heads of packets, confirmations, norms and heartbeats; others may be late by a barrier.
      EXPECT_GE(sent, planned - (1 << 16)) << "stage " << stage;
      EXPECT_LE(sent, planned + planned / 20 + (1 << 19)) << "stage " << stage;
      mesh.world().barrier("read");
    }
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.error, "");
    for (const auto& failure : result.failures) ADD_FAILURE() << failure;
  }
}

}  // namespace
