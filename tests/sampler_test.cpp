// The sampler's promises, over many sizes: every sample once an epoch, ranks disjoint, the world's size of no
// matter.
#include "zero/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "support/expect_error_texts.h"

namespace zero {
namespace {

using Ids = std::vector<int64_t>;
using test::expect_error;

Ids permuted(int64_t size, uint64_t key) {
  const Permutation permutation(size, key);
  Ids out(size);
  for (int64_t i = 0; i < size; ++i) out[i] = permutation(i);
  return out;
}

Ids counted(int64_t size) {
  Ids all(size);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Ids sorted(Ids ids) {
  std::sort(ids.begin(), ids.end());
  return ids;
}

TEST(Permutation, IsABijectionOfEverySize) {
  for (int64_t size = 1; size <= 300; ++size) {
    for (uint64_t key : {0ULL, 1ULL, ~0ULL}) ASSERT_EQ(sorted(permuted(size, key)), counted(size)) << size;
  }
  for (int64_t size : {1023, 1024, 1025, 4095, 4096, 4097, 65536, 100003}) {
    ASSERT_EQ(sorted(permuted(size, 42)), counted(size)) << size;
  }
}

TEST(Permutation, DependsOnItsKey) {
  std::set<Ids> seen;
  for (uint64_t key = 0; key < 200; ++key) seen.insert(permuted(64, key));
  EXPECT_EQ(seen.size(), 200U);
  EXPECT_NE(permuted(64, 5), counted(64));
}

// Over many keys each index goes everywhere about equally often: chi-squared of 15 degrees has mean 15,
// deviation 5.5.
TEST(Permutation, SendsEveryIndexEverywhere) {
  constexpr int64_t kSize = 16, kKeys = 16000;
  for (int64_t index : {0, 1, 7, 15}) {
    std::vector<int64_t> hits(kSize);
    for (uint64_t key = 0; key < kKeys; ++key) ++hits[Permutation(kSize, key)(index)];
    double chi_squared = 0;
    for (int64_t h : hits) chi_squared += (h - kKeys / kSize) * (h - kKeys / kSize) / double{kKeys / kSize};
    EXPECT_LT(chi_squared, 45) << index;
  }
}

// Neighbours do not stay neighbours.
TEST(Permutation, LeavesNoRuns) {
  const Ids order = permuted(10000, 9);
  int64_t neighbours = 0;
  for (size_t i = 0; i + 1 < order.size(); ++i) neighbours += std::abs(order[i] - order[i + 1]) == 1;
  EXPECT_LT(neighbours, 20);  // two expected by chance
}

TEST(Permutation, ReachesTheLargestSizes) {
  const int64_t size = (int64_t{1} << 62) - 57;
  const Permutation permutation(size, 3);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) seen.insert(permutation(size - 1 - i));
  EXPECT_EQ(seen.size(), 1000U);
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), size);
  expect_error(ErrorKind::Usage, {"size of 0"}, [] { Permutation(0, 1); });
  expect_error(ErrorKind::Usage, {"index 5", "[0, 5)"}, [] { Permutation(5, 1)(5); });
}

TEST(Sampler, CountsSamples) {
  EXPECT_EQ(Sampler(9, {.sequence_length = 8}).samples(), 1);
  EXPECT_EQ(Sampler(16, {.sequence_length = 8}).samples(), 1);
  EXPECT_EQ(Sampler(17, {.sequence_length = 8}).samples(), 2);
  EXPECT_EQ(Sampler(17, {.sequence_length = 8}).first_token(1), 8);
  // The last token of the last sample is in the text, whatever the sizes.
  for (int64_t tokens = 2; tokens < 200; ++tokens) {
    for (int64_t length = 1; length < tokens; ++length) {
      const Sampler sampler(tokens, {.sequence_length = length});
      ASSERT_LT(sampler.first_token(sampler.samples() - 1) + length, tokens);
      ASSERT_GE(sampler.first_token(sampler.samples()) + length, tokens);
    }
  }
}

TEST(Sampler, RefusesTooLittleText) {
  expect_error(ErrorKind::Config, {"1024", "only 1024"}, [] { Sampler(1024, {.sequence_length = 1024}); });
  expect_error(ErrorKind::Config, {"only 0"}, [] { Sampler(0, {.sequence_length = 4}); });
  expect_error(ErrorKind::Config, {"at least 1, got 0"}, [] { Sampler(10, {.sequence_length = 0}); });
}

TEST(Sampler, GoesThroughEverySampleOnceAnEpoch) {
  for (int64_t samples : {1, 2, 3, 10, 97, 256}) {
    const Sampler sampler(samples * 4 + 1, {.sequence_length = 4, .seed = 11});
    std::set<Ids> orders;
    for (int64_t epoch = 0; epoch < 5; ++epoch) {
      Ids order;
      for (int64_t i = 0; i < samples; ++i) order.push_back(sampler.sample_at(epoch * samples + i));
      ASSERT_EQ(sorted(order), counted(samples));
      EXPECT_EQ(sampler.epoch_of(epoch * samples), epoch);
      orders.insert(order);
    }
    EXPECT_TRUE(orders.size() == 5 || samples < 10) << samples;
  }
}

TEST(Sampler, SeedsGiveOtherOrders) {
  const auto first = [](uint64_t seed) {
    const Sampler sampler(1001, {.sequence_length = 10, .seed = seed});
    return sampler.batch(0, {.micro_batch_size = 20});
  };
  EXPECT_EQ(first(1), first(1));
  EXPECT_NE(first(1), first(2));
}

// What all ranks take of the step at `position`, in order of micro-batches and ranks.
Ids step_of(const Sampler& sampler, int64_t position, int64_t world, int64_t micro_batches, int64_t size) {
  Ids all;
  for (int64_t micro = 0; micro < micro_batches; ++micro) {
    for (int64_t rank = 0; rank < world; ++rank) {
      const auto ids = sampler.batch(position, {.rank = rank,
                                                .world = world,
                                                .micro = micro,
                                                .micro_batches = micro_batches,
                                                .micro_batch_size = size});
      EXPECT_EQ(std::ssize(ids), size);
      all.insert(all.end(), ids.begin(), ids.end());
    }
  }
  return all;
}

TEST(Sampler, IsTheSameForAnyWorldAtTheSameGlobalBatch) {
  for (int64_t samples : {5, 24, 100, 1000}) {
    for (bool shuffle : {true, false}) {
      const Sampler sampler(samples * 8 + 3, {.sequence_length = 8, .shuffle = shuffle, .seed = 5});
      for (int64_t step = 0; step < 12; ++step) {
        const int64_t position = step * 24;
        const Ids alone = step_of(sampler, position, 1, 1, 24);
        for (int64_t world : {1, 2, 3, 4, 6}) {
          for (int64_t micro_batches : {1, 2, 4}) {
            if (24 % (world * micro_batches) != 0) continue;
            ASSERT_EQ(step_of(sampler, position, world, micro_batches, 24 / world / micro_batches), alone);
          }
        }
      }
    }
  }
}

TEST(Sampler, RanksTakeDisjointSamples) {
  const Sampler sampler(1000 * 4 + 1, {.sequence_length = 4, .seed = 8});
  std::set<int64_t> seen;
  int64_t taken = 0;
  for (int64_t step = 0; step < 41; ++step) {  // 41 * 24 <= 1000: one epoch
    for (int64_t id : step_of(sampler, step * 24, 4, 2, 3)) seen.insert(id), ++taken;
  }
  EXPECT_EQ(std::ssize(seen), taken);
}

TEST(Sampler, ABatchGoesOnInTheNextEpoch) {
  const Sampler sampler(10 * 4 + 1, {.sequence_length = 4, .seed = 2});
  const Ids batch = sampler.batch(6, {.micro_batch_size = 8});
  Ids expected;
  for (int64_t position = 6; position < 14; ++position) expected.push_back(sampler.sample_at(position));
  EXPECT_EQ(batch, expected);
  Ids first_epoch = sampler.batch(0, {.micro_batch_size = 6});
  first_epoch.insert(first_epoch.end(), batch.begin(), batch.begin() + 4);
  EXPECT_EQ(sorted(first_epoch), counted(10));
}

TEST(Sampler, ResumesFromAPosition) {
  const SamplerOptions options{.sequence_length = 16, .seed = 77};
  const Sampler before(5000, options);
  Ids whole, resumed;
  for (int64_t step = 0; step < 100; ++step) {
    const auto ids = step_of(before, step * 12, 3, 2, 2);
    whole.insert(whole.end(), ids.begin(), ids.end());
  }
  int64_t position = 0;
  for (int64_t part = 0; part < 4; ++part) {  // a new sampler each time, as in a new process; other worlds
    const Sampler after(5000, options);
    for (int64_t step = 0; step < 25; ++step, position += 12) {
      const auto ids = step_of(after, position, part % 2 == 0 ? 2 : 6, 1, part % 2 == 0 ? 6 : 2);
      resumed.insert(resumed.end(), ids.begin(), ids.end());
    }
  }
  EXPECT_EQ(whole, resumed);
}

// A change here changes what a resumed run reads: it would need a new version of the stored position.
TEST(Sampler, OrderIsFixedForever) {
  const Sampler sampler(1001, {.sequence_length = 10, .seed = 1234});
  EXPECT_EQ(sampler.batch(98, {.micro_batch_size = 6}), (Ids{79, 36, 92, 14, 31, 15}));
}

TEST(Sampler, EvaluatesEverySampleOnce) {
  for (int64_t samples = 1; samples <= 60; ++samples) {
    const Sampler sampler(samples * 3 + 1, {.sequence_length = 3, .seed = 1});
    for (int64_t world : {1, 2, 3, 4, 7}) {
      for (int64_t size : {1, 2, 5}) {
        Ids all;
        const int64_t batches = sampler.evaluation_batches(world, size);
        for (int64_t index = 0; index < batches; ++index) {
          for (int64_t rank = 0; rank < world; ++rank) {
            const auto ids = sampler.evaluation_batch(index, rank, world, size);
            ASSERT_LE(std::ssize(ids), size);
            all.insert(all.end(), ids.begin(), ids.end());
          }
        }
        ASSERT_EQ(all, counted(samples)) << samples << " samples, " << world << " ranks of " << size;
      }
    }
  }
}

TEST(Sampler, RefusesSlotsThatMakeNoSense) {
  const Sampler sampler(100, {.sequence_length = 4});
  expect_error(ErrorKind::Usage, {"rank 2 of 2"}, [&] { sampler.batch(0, {.rank = 2, .world = 2}); });
  expect_error(ErrorKind::Usage, {"micro-batch -1"}, [&] { sampler.batch(0, {.micro = -1}); });
  expect_error(ErrorKind::Usage, {"position -1"}, [&] { sampler.batch(-1, {}); });
  expect_error(ErrorKind::Usage, {"0 ranks"}, [&] { sampler.batch(0, {.world = 0}); });
  const int64_t most = std::numeric_limits<int64_t>::max();
  expect_error(ErrorKind::Usage, {"out of range"}, [&] { sampler.batch(most, {}); });
  expect_error(ErrorKind::Usage, {"micro-batches"},
               [&] { sampler.batch(0, {.world = most, .micro_batches = 2}); });
  expect_error(ErrorKind::Usage, {"evaluation batch 25 of 24"},
               [&] { sampler.evaluation_batch(25, 0, 1, 1); });
}

}  // namespace
}  // namespace zero
