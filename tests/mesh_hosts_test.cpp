// Groups over several hosts of several ranks: values, bits, and bytes that cross.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "base/host_routes.h"
#include "mesh/group_parts.h"
#include "mesh/ordered_sum.h"
#include "support/expect_error.h"
#include "support/ranks.h"
#include "zero/error.h"

namespace zero {
namespace {

using testing::collect_ranks;
using testing::RankOptions;
using testing::run_ranks;

using Hosts = std::vector<std::string>;

RankOptions on_hosts(Hosts hosts, Communication communication = Communication::exact) {
  RankOptions options;
  options.hosts = std::move(hosts);
  options.mesh.communication = communication;
  return options;
}

const std::vector<Hosts> kPlaces{{"a", "a", "b", "b"}, {"a", "b"},           {"a", "a", "a", "b"},
                                 {"a", "b", "b", "b"}, {"a", "b", "a", "b"}, {"a", "a", "b", "c", "c"}};

std::vector<int> numbers_of(const Hosts& hosts) {
  std::vector<int> numbers;
  for (const std::string& host : hosts) numbers.push_back(host[0] - 'a');
  return numbers;
}

// What one rank gives: any other order of additions gives other bits.
at::Tensor values_of(int rank, int round, int64_t numel, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(100 * round + rank));
  return (torch::randn({numel}, generator) * (rank % 2 == 0 ? 1000 : 1)).to(dtype);
}

// The sum that the documentation promises.
at::Tensor promised_sum(const Hosts& hosts, int round, int64_t numel, at::ScalarType dtype,
                        Communication communication) {
  std::vector<at::Tensor> rows;
  for (int rank = 0; rank < std::ssize(hosts); ++rank)
    rows.push_back(values_of(rank, round, numel, dtype).to(at::kFloat));
  if (communication == Communication::fast) {
    const detail::HostRoutes routes(numbers_of(hosts));
    std::vector<at::Tensor> sums;
    for (int host = 0; host < routes.hosts(); ++host) {
      at::Tensor sum = rows[static_cast<size_t>(routes.members(host)[0])].clone();
      for (size_t i = 1; i < routes.members(host).size(); ++i)
        sum += rows[static_cast<size_t>(routes.members(host)[i])];
      sums.push_back(sum);
    }
    rows = sums;
  }
  at::Tensor sum = rows[0].clone();
  for (size_t i = 1; i < rows.size(); ++i) sum += rows[i];
  return sum;
}

TEST(HostsCollectives, GatherAndSumWithThePromisedBits) {
  for (const Hosts& hosts : kPlaces)
    for (const auto communication : {Communication::exact, Communication::fast})
      run_ranks(
          static_cast<int>(hosts.size()),
          [&](const Mesh& mesh) {
            const Group dp = mesh.group("dp");
            const int ranks = mesh.size();
            for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf})
              for (const int64_t part : {int64_t{1}, int64_t{70001}}) {
                SCOPED_TRACE(std::to_string(part) + " of " + c10::toString(dtype));
                const at::Tensor mine = values_of(mesh.rank(), 1, ranks * part, dtype);
                at::Tensor all = at::empty({ranks * ranks * part}, dtype);
                dp.all_gather(all, mine, "gather").wait();
                for (int rank = 0; rank < ranks; ++rank)
                  EXPECT_TRUE(at::equal(all.narrow(0, rank * ranks * part, ranks * part),
                                        values_of(rank, 1, ranks * part, dtype)));
                const at::Tensor sum = promised_sum(hosts, 1, ranks * part, dtype, communication)
                                           .narrow(0, mesh.rank() * part, part);
                at::Tensor out = at::empty({part});
                dp.reduce_scatter(out, mine, false, "sum").wait();
                EXPECT_TRUE(at::equal(out, sum));
                dp.reduce_scatter(out, mine, true, "sum").wait();
                EXPECT_TRUE(at::equal(out, sum + sum));
              }
            for (int root = 0; root < ranks; ++root) {
              at::Tensor value = at::full({1001}, mesh.rank(), at::kInt);
              dp.broadcast(value, root, "root").wait();
              EXPECT_TRUE(at::equal(value, at::full({1001}, root, at::kInt)));
            }
            // Norms and losses are exact in any case.
            for (const int64_t numel : {int64_t{3}, int64_t{100003}}) {
              at::Tensor value = values_of(mesh.rank(), 2, numel, at::kFloat);
              dp.all_reduce(value, Group::Reduce::Sum, "norm").wait();
              EXPECT_TRUE(at::equal(value, promised_sum(hosts, 2, numel, at::kFloat, Communication::exact)));
            }
            dp.barrier("end");
          },
          on_hosts(hosts, communication));
}

// Several outputs, some added to, and this rank's own values elsewhere.
TEST(HostsCollectives, SumsGoIntoParts) {
  for (const Hosts& hosts : kPlaces)
    run_ranks(
        static_cast<int>(hosts.size()),
        [&](const Mesh& mesh) {
          const int64_t ranks = mesh.size(), part = 1000;
          const at::Tensor mine = values_of(mesh.rank(), 3, ranks * part, at::kBFloat16);
          at::Tensor given = mine.clone();
          const at::Tensor own = mine.narrow(0, mesh.rank() * part + 300, 200).clone();
          given.narrow(0, mesh.rank() * part + 300, 200).fill_(-1);  // not read
          at::Tensor first = at::full({300}, 7.0f), second = at::empty({200}), third = at::empty({500});
          detail::reduce_scatter(mesh.group("dp"), {{first, true}, {second, false, own}, {third, false}},
                                 given, "parts")
              .wait();
          const at::Tensor sum = promised_sum(hosts, 3, ranks * part, at::kBFloat16, Communication::exact)
                                     .narrow(0, mesh.rank() * part, part);
          EXPECT_TRUE(at::equal(first, at::full({300}, 7.0f) + sum.narrow(0, 0, 300)));
          EXPECT_TRUE(at::equal(second, sum.narrow(0, 300, 200)));
          EXPECT_TRUE(at::equal(third, sum.narrow(0, 500, 500)));
        },
        on_hosts(hosts));
}

// Bytes that are handed to the network, against the routes', which host_routes_test compares with formulas.
TEST(HostsCollectives, BytesAreThoseOfTheRoutes) {
  for (const Hosts& hosts : kPlaces)
    for (const auto communication : {Communication::exact, Communication::fast}) {
      const detail::HostRoutes routes(numbers_of(hosts));
      const int64_t part = 500, ranks = std::ssize(hosts);
      const auto results = run_ranks(
          static_cast<int>(ranks),
          [&](const Mesh& mesh) {
            const Group dp = mesh.group("dp");
            at::Tensor all = at::empty({ranks * part}, at::kBFloat16), own = at::zeros({part}, at::kBFloat16);
            at::Tensor sum = at::empty({part});
            const int64_t before = dp.network_bytes();
            dp.all_gather(all, own, "gather").wait();
            const int64_t gathered = dp.network_bytes();
            dp.reduce_scatter(sum, all, false, "sum").wait();
            const int64_t reduced = dp.network_bytes();
            dp.reduce_scatter(sum, all.to(at::kFloat), false, "sum").wait();
            testing::hand_back(
                at::tensor({gathered - before, reduced - gathered, dp.network_bytes() - reduced}, at::kLong));
          },
          on_hosts(hosts, communication));
      at::Tensor sent = at::zeros({routes.hosts(), 3}, at::kLong);
      for (int rank = 0; rank < ranks; ++rank)
        sent[routes.host_of(rank)] +=
            testing::tensor_from_bytes(results[static_cast<size_t>(rank)].bytes, at::kLong);
      const auto gather = routes.of_all_gather();
      const auto sum16 = routes.of_reduce_scatter(2, communication);
      const auto sum32 = routes.of_reduce_scatter(4, communication);
      for (int host = 0; host < routes.hosts(); ++host) {
        EXPECT_EQ(sent[host][0].item<int64_t>(), gather[static_cast<size_t>(host)].sent * part * 2);
        EXPECT_EQ(sent[host][1].item<int64_t>(), sum16[static_cast<size_t>(host)].sent * part);
        EXPECT_EQ(sent[host][2].item<int64_t>(), sum32[static_cast<size_t>(host)].sent * part);
      }
    }
}

// Ranks come at any time, wait in any order, and some never wait: what passes through them goes on.
TEST(HostsCollectives, DelaysAndDroppedWorkChangeNothing) {
  const Hosts hosts{"a", "a", "b", "b"};
  run_ranks(
      4,
      [&](const Mesh& mesh) {
        const Group dp = mesh.group("dp");
        std::mt19937 random(static_cast<unsigned>(mesh.rank()));
        const auto dawdle = [&] { std::this_thread::sleep_for(std::chrono::milliseconds(random() % 6)); };
        const int64_t part = 3001;
        std::vector<at::Tensor> gathered, sums;
        std::vector<Work> works;
        for (int round = 0; round < 20; ++round) {
          dawdle();
          const at::Tensor mine = values_of(mesh.rank(), round, 4 * part, at::kFloat);
          gathered.push_back(at::empty({16 * part}));
          works.push_back(dp.all_gather(gathered.back(), mine, "gather"));
          sums.push_back(at::empty({part}));
          dawdle();
          works.push_back(dp.reduce_scatter(sums.back(), mine, false, "sum"));
          if (round % 4 == mesh.rank()) works[works.size() - 2] = Work();  // dropped
        }
        for (size_t i = works.size(); i-- > 0;) {
          dawdle();
          works[i].wait();
        }
        for (int round = 0; round < 20; ++round) {
          const auto at = static_cast<size_t>(round);
          EXPECT_TRUE(
              at::equal(sums[at], promised_sum(hosts, round, 4 * part, at::kFloat, Communication::exact)
                                      .narrow(0, mesh.rank() * part, part)));
          if (round % 4 == mesh.rank()) continue;
          for (int rank = 0; rank < 4; ++rank)
            EXPECT_TRUE(at::equal(gathered[at].narrow(0, rank * 4 * part, 4 * part),
                                  values_of(rank, round, 4 * part, at::kFloat)));
        }
        dp.barrier("end");
      },
      on_hosts(hosts));
}

// A rank that computes for long serves the others all the same.
TEST(HostsCollectives, WhatPassesThroughARankNeedsNoWaitOfIt) {
  run_ranks(
      4,
      [](const Mesh& mesh) {
        const Group dp = mesh.group("dp");
        at::Tensor all = at::empty({4000});
        Work work = dp.all_gather(all, at::full({1000}, mesh.rank() + 1.0f), "gather");
        at::Tensor sum = at::empty({1000});
        Work reduced = dp.reduce_scatter(sum, at::ones({4000}), false, "sum");
        if (mesh.rank() == 2) {
          at::Tensor told = at::empty({1}, at::kLong);
          dp.receive(told, 0, 1, "until the others are done").wait();
          dp.receive(told, 3, 1, "until the others are done").wait();
        }
        work.wait();
        reduced.wait();
        EXPECT_EQ(all.sum().item<float>(), 10000);
        EXPECT_EQ(sum.sum().item<float>(), 4000);
        if (mesh.rank() == 0 || mesh.rank() == 3)
          dp.send(at::ones({1}, at::kLong), 2, 1, "until the others are done").wait();
      },
      on_hosts({"a", "a", "b", "b"}));
}

TEST(HostsFaults, AHostThatDiesIsNamed) {
  RankOptions options = on_hosts({"north", "north", "south", "south"});
  options.mesh.timeout = std::chrono::seconds(60);
  const auto results = collect_ranks(
      4,
      [](const Mesh& mesh) {
        const Group dp = mesh.group("dp");
        for (int round = 0; round < 50; ++round) {
          if (round == 7 && mesh.rank() >= 2) kill(getpid(), SIGKILL);
          at::Tensor sum = at::empty({50000});
          dp.reduce_scatter(sum, at::ones({200000}), false, "h." + std::to_string(round)).wait();
          at::Tensor all = at::empty({200000});
          dp.all_gather(all, sum, "h." + std::to_string(round)).wait();
        }
      },
      options);
  for (const size_t rank : {0, 1}) {
    EXPECT_EQ(results[rank].exit, 1);
    EXPECT_NE(results[rank].error.find("communication error"), std::string::npos) << results[rank].error;
    EXPECT_NE(results[rank].error.find("(host south) is gone"), std::string::npos) << results[rank].error;
    EXPECT_EQ(results[rank].error.find("host north"), std::string::npos) << results[rank].error;
  }
}

TEST(HostsFaults, ARankThatDoesNotComeIsNamedAtTheTimeout) {
  RankOptions options = on_hosts({"north", "north", "south", "south"});
  options.mesh.timeout = std::chrono::seconds(2);
  const auto results = collect_ranks(
      4,
      [](const Mesh& mesh) {
        const Group dp = mesh.group("dp");
        dp.barrier("start");
        if (mesh.rank() == 2) {
          std::this_thread::sleep_for(std::chrono::seconds(6));
          return;
        }
        at::Tensor sum = at::empty({50000});
        dp.reduce_scatter(sum, at::ones({200000}), false, "h.1").wait();
      },
      options);
  for (const size_t rank : {0, 1, 3}) {
    EXPECT_NE(results[rank].error.find("rank 2"), std::string::npos) << results[rank].error;
    EXPECT_NE(results[rank].error.find("has not arrived"), std::string::npos) << results[rank].error;
  }
}

TEST(HostsAxes, LayersAreSharedInsideAHostUnlessPermitted) {
  RankOptions options = on_hosts({"a", "a", "a", "b"});
  options.mesh.axes = {{"dp", 2}, {"tp", 2}};
  options.mesh.timeout = std::chrono::seconds(10);
  for (const auto& rank : collect_ranks(
           4, [](const Mesh&) {}, options))
    EXPECT_NE(rank.error.find("ranks 2 and 3 share layers (tp), but are on different hosts"),
              std::string::npos)
        << rank.error;
  options.mesh.tensor_across_hosts = true;
  run_ranks(
      4,
      [](const Mesh& mesh) {
        at::Tensor value = at::ones({2});
        mesh.group("tp").all_reduce(value, Group::Reduce::Sum, "layer").wait();
        EXPECT_EQ(value.sum().item<float>(), 4);
      },
      options);
  options.mesh.tensor_across_hosts = false;
  options.hosts = {"a", "a", "b", "b"};
  run_ranks(
      4, [](const Mesh& mesh) { EXPECT_TRUE(mesh.group("tp").shares_memory()); }, options);
}

}  // namespace
}  // namespace zero
