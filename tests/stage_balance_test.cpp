// Stages of a pipeline: the heaviest as light as can be, by comparison with all cuts.
#include "plan/stage_balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>

#include "support/expect_error.h"
#include "zero/error.h"

namespace {

using zero::balance_stages;
using zero::PartWeights;
using Counts = std::vector<int64_t>;

double heaviest_of(const PartWeights& weights, const Counts& counts) {
  double heaviest = 0;
  size_t at = 0;
  for (size_t s = 0; s < counts.size(); ++s) {
    double weight = (s == 0 ? weights.first : 0) + (s + 1 == counts.size() ? weights.last : 0);
    for (int64_t i = 0; i < counts[s]; ++i) weight += weights.blocks[at++];
    heaviest = std::max(heaviest, weight);
  }
  return heaviest;
}

void for_each_cut(int64_t blocks, size_t stages, Counts& begun,
                  const std::function<void(const Counts&)>& use) {
  if (begun.size() + 1 == stages) {
    begun.push_back(blocks);
    use(begun);
    begun.pop_back();
    return;
  }
  for (int64_t here = 0; here <= blocks; ++here) {
    begun.push_back(here);
    for_each_cut(blocks - here, stages, begun, use);
    begun.pop_back();
  }
}

TEST(StageBalance, IsAsGoodAsAnyCut) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    PartWeights weights{.first = double(random() % 20), .last = double(random() % 20), .blocks = {}};
    for (size_t i = random() % 7; i > 0; --i) weights.blocks.push_back(double(1 + random() % 9));
    const auto stages = 1 + random() % 4;
    const Counts found = balance_stages(weights, static_cast<int>(stages));
    ASSERT_EQ(found.size(), stages);
    ASSERT_EQ(std::accumulate(found.begin(), found.end(), int64_t{0}), std::ssize(weights.blocks));
    double best = 1e9;
    Counts begun;
    for_each_cut(std::ssize(weights.blocks), stages, begun,
                 [&](const Counts& cut) { best = std::min(best, heaviest_of(weights, cut)); });
    EXPECT_EQ(heaviest_of(weights, found), best);
  }
}

TEST(StageBalance, SpreadsEqualBlocksEvenly) {
  EXPECT_EQ(balance_stages({.blocks = std::vector<double>(8, 1)}, 4), Counts(4, 2));
  // A head that is as heavy as two blocks.
  EXPECT_EQ(balance_stages({.last = 2, .blocks = std::vector<double>(6, 1)}, 4), (Counts{2, 2, 2, 0}));
  EXPECT_ERROR(balance_stages({}, 0), Config, "at least 1 stage");
}

}  // namespace
