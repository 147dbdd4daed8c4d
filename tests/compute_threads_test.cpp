// Which cores a rank keeps to.
#include "zero/compute_threads.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <set>
#include <thread>

#include "zero/error.h"

namespace zero {
namespace {

TEST(ComputeThreads, EveryCoreBelongsToOneRank) {
  for (int count = 1; count <= 9; ++count) {
    std::vector<int> allowed;
    for (int i = 0; i < count; ++i) allowed.push_back(3 * i + 1);
    for (int ranks = 1; ranks <= count; ++ranks) {
      std::vector<int> all;
      size_t least = allowed.size(), most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<int> own = cores_of_rank(allowed, rank, ranks);
        all.insert(all.end(), own.begin(), own.end());
        least = std::min(least, own.size());
        most = std::max(most, own.size());
      }
      EXPECT_EQ(all, allowed) << ranks << " ranks";
      EXPECT_LE(most - least, 1u);
      EXPECT_GE(least, 1u);
    }
  }
}

TEST(ComputeThreads, MoreRanksThanCoresTakeTurns) {
  const std::vector<int> allowed{4, 7};
  EXPECT_EQ(cores_of_rank(allowed, 0, 5), std::vector{4});
  EXPECT_EQ(cores_of_rank(allowed, 1, 5), std::vector{7});
  EXPECT_EQ(cores_of_rank(allowed, 4, 5), std::vector{4});
}

TEST(ComputeThreads, RefusesWhatMakesNoSense) {
  const std::vector<int> allowed{0};
  EXPECT_THROW(cores_of_rank(allowed, 1, 1), Error);
  EXPECT_THROW(cores_of_rank(allowed, -1, 1), Error);
  EXPECT_THROW(cores_of_rank({}, 0, 1), Error);
}

TEST(ComputeThreads, ABoundThreadAndThoseItStartsKeepToTheirCores) {
  std::thread([] {
    cpu_set_t before;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    const std::vector<int> cores = bind_to_cores(0, CPU_COUNT(&before));
    ASSERT_EQ(cores.size(), 1u);
    std::thread([&] {
      cpu_set_t now;
      ASSERT_EQ(sched_getaffinity(0, sizeof now, &now), 0);
      EXPECT_EQ(CPU_COUNT(&now), 1);
      EXPECT_TRUE(CPU_ISSET(cores[0], &now));
    }).join();
  }).join();
}

}  // namespace
}  // namespace zero
