// Who sends what to whom between hosts, and how many bytes that is.
#include "base/host_routes.h"

#include <gtest/gtest.h>

#include <random>

namespace zero::detail {
namespace {

using Ranks = std::vector<int>;

int64_t sent(const std::vector<CrossingBytes>& hosts) {
  int64_t sum = 0, received = 0;
  for (const CrossingBytes& host : hosts) {
    sum += host.sent;
    received += host.received;
  }
  EXPECT_EQ(sum, received);
  return sum;
}

TEST(HostRoutes, ReceiversShareTheWork) {
  const Ranks hosts{7, 7, 7, 3, 7, 3};
  const HostRoutes routes(hosts);
  EXPECT_EQ(routes.hosts(), 2);
  EXPECT_EQ(routes.members(0), (Ranks{0, 1, 2, 4}));
  EXPECT_EQ(routes.members(1), (Ranks{3, 5}));
  EXPECT_EQ(routes.receiver(3, 0), 0);
  EXPECT_EQ(routes.receiver(5, 0), 1);
  EXPECT_EQ(routes.receiver(4, 1), 5);
  EXPECT_EQ(routes.receiver(2, 1), 3);
}

// A part of n bytes of each of r ranks a host: (hosts - 1) * r * n leave a host, and what all others have
// comes in once, not once for each of its ranks.
TEST(HostRoutes, AnAllGatherCrossesOncePerHost) {
  for (const int ranks : {1, 2, 5})
    for (const int hosts : {2, 3, 4}) {
      Ranks places;
      for (int rank = 0; rank < ranks * hosts; ++rank) places.push_back(rank / ranks);
      for (const CrossingBytes& host : HostRoutes(places).of_all_gather()) {
        EXPECT_EQ(host.sent, ranks * (hosts - 1));
        EXPECT_EQ(host.received, ranks * (hosts - 1));
      }
    }
}

// Two hosts of two ranks in fp32. Owners on the second host: the first host's sum comes as one. Owners on the
// first: two rows, which are no more than a sum that goes there and back.
TEST(HostRoutes, ExactSumsTakeTheCheaperWay) {
  const HostRoutes routes(Ranks{0, 0, 1, 1});
  EXPECT_FALSE(routes.sum_route(0, 4, Communication::exact).is_running);
  const SumRoute last = routes.sum_route(3, 4, Communication::exact);
  ASSERT_TRUE(last.is_running);
  ASSERT_EQ(last.steps.size(), 2U);
  EXPECT_EQ(last.steps[0].ranks, (Ranks{0, 1}));
  EXPECT_EQ(last.steps[0].adder, 1) << "half of the owners are its";
  EXPECT_EQ(last.steps[1].adder, 3) << "the owner itself";
  const auto bytes = routes.of_reduce_scatter(4, Communication::exact);
  EXPECT_EQ(bytes[0].sent, 2 * 4);
  EXPECT_EQ(bytes[1].sent, 2 * 2 * 4);
  const auto fast = routes.of_reduce_scatter(4, Communication::fast);
  EXPECT_EQ(fast[0].sent, 2 * 4);
  EXPECT_EQ(fast[1].sent, 2 * 4);
  // Rows in 16 bits are as cheap as sums.
  EXPECT_FALSE(routes.sum_route(3, 2, Communication::exact).is_running);
}

// With many ranks a host no host sends more than one fp32 sum for every element, whatever travels elsewhere.
TEST(HostRoutes, NoHostSendsAnElementTwice) {
  for (const int hosts : {2, 4, 8}) {
    Ranks places;
    for (int rank = 0; rank < 8 * hosts; ++rank) places.push_back(rank / 8);
    const HostRoutes routes(places);
    for (const int64_t item : {2, 4}) {
      const int64_t direct = item * 8 * 8 * (hosts - 1);  // every rank to every owner elsewhere
      for (const CrossingBytes& host : routes.of_reduce_scatter(item, Communication::exact)) {
        EXPECT_LE(host.sent, 4 * 8 * hosts);
        EXPECT_LT(host.sent, direct);
      }
      for (const CrossingBytes& host : routes.of_reduce_scatter(item, Communication::fast))
        EXPECT_EQ(host.sent, 4 * 8 * (hosts - 1));
    }
  }
}

TEST(HostRoutes, RanksAloneOnTheirHostsSendRows) {
  const HostRoutes routes(Ranks{0, 1, 2});
  for (const auto way : {Communication::exact, Communication::fast})
    for (const CrossingBytes& host : routes.of_reduce_scatter(2, way)) EXPECT_EQ(host.sent, 2 * 2);
}

TEST(HostRoutes, EveryRankIsAddedOnceAndInOrder) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 300; ++trial) {
    Ranks places(1 + random() % 9);
    for (int& place : places) place = static_cast<int>(random() % 4);
    const HostRoutes routes(places);
    const int64_t item = random() % 2 == 0 ? 2 : 4;
    int64_t exact = 0;
    for (int owner = 0; owner < routes.ranks(); ++owner)
      for (const auto way : {Communication::exact, Communication::fast}) {
        const SumRoute route = routes.sum_route(owner, item, way);
        Ranks order;
        for (const SumRoute::Step& step : route.steps) {
          order.insert(order.end(), step.ranks.begin(), step.ranks.end());
          for (const int rank : step.ranks) EXPECT_EQ(routes.host_of(rank), routes.host_of(step.adder));
        }
        if (way == Communication::fast) std::sort(order.begin(), order.end());
        ASSERT_EQ(order.size(), places.size());
        for (int rank = 0; rank < routes.ranks(); ++rank) EXPECT_EQ(order[static_cast<size_t>(rank)], rank);
      }
    exact = sent(routes.of_reduce_scatter(item, Communication::exact));
    int64_t rows = 0;
    for (int owner = 0; owner < routes.ranks(); ++owner)
      for (int rank = 0; rank < routes.ranks(); ++rank)
        rows += routes.host_of(rank) == routes.host_of(owner) ? 0 : item;
    EXPECT_LE(exact, rows);
    EXPECT_LE(sent(routes.of_reduce_scatter(item, Communication::fast)), rows);
  }
}

}  // namespace
}  // namespace zero::detail
