// The network in simulated time: formulas, groups that share a rank's connection, ranks that share a host's
// card, and figures that do not depend on how processes happen to run.
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "support/virtual_ranks.h"
#include "virtual/network.h"

namespace zero::virtual_device::testing {
namespace {

using torch::Tensor;
using zero::testing::hand_back;

constexpr Picoseconds kMicrosecond = 1'000'000;

Network network_of(const std::vector<int>& hosts, const std::vector<int>& ranks_of_hosts, int64_t cards = 1) {
  DeviceDescription plain = description_from_text(kPlainMachine, "plain machine");
  plain.network_cards = cards;
  return Network(plain, hosts, ranks_of_hosts);
}

// Within a host 100 GB/s and 1 us, a card 10 GB/s and 5 us.
TEST(VirtualNetwork, RingsAreAsFastAsTheirSlowestConnection) {
  const double megabyte = 1e6;
  EXPECT_EQ(network_of({0, 0, 0, 0}, {4, 4, 4, 4}).parts_time(megabyte), 3 * 11 * kMicrosecond);
  // The ring of all ranks enters and leaves each host once.
  EXPECT_EQ(network_of({0, 0, 1, 1}, {2, 2, 2, 2}).parts_time(megabyte), 3 * 105 * kMicrosecond);
  // Two rings, one of each rank of a host, share its card.
  EXPECT_EQ(network_of({0, 1}, {2, 2}).parts_time(megabyte), 205 * kMicrosecond);
  EXPECT_EQ(network_of({0, 1}, {2, 2}, 2).parts_time(megabyte), 105 * kMicrosecond);
  EXPECT_EQ(network_of({0, 1}, {2, 1}, 2).parts_time(megabyte), 105 * kMicrosecond) << "the slowest host";
  // No rank passes on more than its own connection carries.
  EXPECT_EQ(network_of({0, 1}, {1, 1}, 64).parts_time(megabyte), 15 * kMicrosecond);
  EXPECT_EQ(network_of({0, 0, 0, 0}, {4, 4, 4, 4}).broadcast_time(megabyte), (3 + 10) * kMicrosecond);
  const Network two = network_of({0, 0, 1}, {2, 2, 1});
  EXPECT_EQ(two.message_time(megabyte, 0, 1), 11 * kMicrosecond);
  EXPECT_EQ(two.message_time(megabyte, 0, 2), 205 * kMicrosecond);
}

TEST(VirtualNetwork, ARanksConnectionIsGivenInTheProgramsOrder) {
  RankLink link;
  EXPECT_EQ(link.begin(100, 50), 100);
  EXPECT_EQ(link.begin(120, 10), 150);
  EXPECT_EQ(link.begin(500, 10), 500);
  link.ended(600);  // another rank came late
  EXPECT_EQ(link.begin(520, 10), 600);
  link.ended(590);
  EXPECT_EQ(link.begin(0, 1), 610);
}

double ns_of(const std::string& bytes, size_t index = 0) {
  double ns = 0;
  if (bytes.size() < (index + 1) * sizeof ns)
    ADD_FAILURE() << "no figures";
  else
    std::memcpy(&ns, bytes.data() + index * sizeof ns, sizeof ns);
  return ns;
}

void hand_back_ns(double ns) { hand_back(std::string_view(reinterpret_cast<const char*>(&ns), sizeof ns)); }

Tensor on(const Mesh& mesh, int64_t numel) { return at::ones({numel}, torch::TensorOptions(mesh.device())); }

double simulated(const Mesh& mesh, const std::function<void()>& work) {
  mesh.world().barrier("begin");
  own_devices().synchronize();
  const double begin = own_devices().simulated_ns();
  work();
  own_devices().synchronize();
  return own_devices().simulated_ns() - begin;
}

struct Gather {
  Tensor in, out;
  Work work;
  Gather(const Mesh& mesh, const Group& group, int64_t numel)
      : in(on(mesh, numel)), out(on(mesh, numel * group.size())), work(group.all_gather(out, in, "gather")) {}
};

/// Ranks of a mesh dp 2 x tp 2 that gather along one axis, the other, and both at once.
void gather_along_both(const Mesh& mesh, bool dawdle) {
  constexpr int64_t kNumel = 1 << 20;
  const auto pause = [&](int turn) {
    if (dawdle) usleep(static_cast<useconds_t>(1000 * ((mesh.rank() * 7 + turn * 5) % 11)));
  };
  const Group dp = mesh.group("dp"), tp = mesh.group("tp");
  hand_back_ns(simulated(mesh, [&] { Gather(mesh, dp, kNumel).work.wait(); }));
  hand_back_ns(simulated(mesh, [&] { Gather(mesh, tp, kNumel).work.wait(); }));
  hand_back_ns(simulated(mesh, [&] {
    pause(0);
    Gather first(mesh, dp, kNumel);
    pause(1);
    Gather second(mesh, tp, kNumel);
    pause(2);
    first.work.wait();
    second.work.wait();
  }));
  // Some ranks compute before, and all wait the other way around.
  hand_back_ns(simulated(mesh, [&] {
    const Tensor factor = at::ones({512, 512}, torch::TensorOptions(mesh.device()));
    for (int i = 0; i < mesh.rank() * 20; ++i) at::mm(factor, factor);
    pause(3);
    Gather first(mesh, dp, kNumel), second(mesh, tp, kNumel);
    pause(4);
    second.work.wait();
    first.work.wait();
  }));
  expect_no_faults();
}

TEST(VirtualNetworkRanks, GroupsShareARanksConnectionInAnyInterleaving) {
  const auto run = [](bool dawdle) {
    auto options = on_virtual_devices();
    options.mesh.axes = {{"dp", 2}, {"tp", 2}};
    return zero::testing::run_ranks(
        4, [=](Mesh mesh) { gather_along_both(mesh, dawdle); }, options);
  };
  const auto steady = run(false), dawdling = run(true);
  const double part_ns = 1000 + 4.0 * (1 << 20) / 100;
  for (size_t rank = 0; rank < 4; ++rank) {
    const std::string& bytes = steady[rank].bytes;
    EXPECT_EQ(bytes, dawdling[rank].bytes) << "rank " << rank << ": to the last digit";
    EXPECT_NEAR(ns_of(bytes, 0), ns_of(bytes, 1), 1) << "the axes are alike";
    EXPECT_GT(ns_of(bytes, 2), ns_of(bytes, 0) + 0.95 * part_ns) << "one after the other";
    EXPECT_LT(ns_of(bytes, 2), ns_of(bytes, 0) + 1.5 * part_ns);
  }
  EXPECT_GT(ns_of(steady[0].bytes, 3), ns_of(steady[0].bytes, 2)) << "rank 3 comes late";
}

/// Two hosts of two ranks: blocks of neighbours gather within their host, and both ranks of a host with those
/// of the other host, over one card.
TEST(VirtualNetworkRanks, HybridGroupsShareTheirHostsCard) {
  const auto results = zero::testing::collect_processes(4, [](const Rendezvous& rendezvous) {
    MeshOptions options = on_virtual_devices().mesh;
    options.host = rendezvous.rank < 2 ? "first" : "second";
    const Mesh mesh = Mesh::join(rendezvous, options);
    const Mesh::Blocks blocks = mesh.split("dp", 2);
    for (const Group& group : {blocks.inner, blocks.outer, mesh.world()})
      hand_back_ns(simulated(mesh, [&] { Gather(mesh, group, 1 << 18).work.wait(); }));
    expect_no_faults();
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit, 0) << result.error << (result.failures.empty() ? "" : result.failures[0]);
    const double bytes = 4.0 * (1 << 18), kernels_ns = 3 * 4000 + 10'000;
    EXPECT_NEAR(ns_of(result.bytes, 0), 1000 + bytes / 100, kernels_ns);
    EXPECT_NEAR(ns_of(result.bytes, 1), 5000 + bytes / 5, kernels_ns);
    EXPECT_NEAR(ns_of(result.bytes, 2), 3 * (5000 + bytes / 10), kernels_ns);
  }
}

}  // namespace
}  // namespace zero::virtual_device::testing
