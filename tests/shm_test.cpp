// Ranks of one host: what they read in place, own together, and how they notice each other.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <thread>

#include "base/block_map.h"
#include "mesh/group_parts.h"
#include "support/ranks.h"
#include "support/signal_pipe.h"
#include "zero/error.h"
#include "zero/memory_in_use.h"

namespace zero {
namespace {

using detail::BlockMap;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::collect_processes;
using testing::collect_ranks;
using testing::RankOptions;
using testing::run_ranks;
using testing::SignalPipe;
using Clock = std::chrono::steady_clock;

RankOptions shared_memory() {
  RankOptions options;
  options.mesh.transport = "shm";
  return options;
}

TEST(BlockMap, TakesGivesAndMerges) {
  BlockMap map(1024);
  const size_t a = map.take(100).value(), b = map.take(1).value(), c = map.take(64, 256).value();
  EXPECT_EQ(a, 0u);
  EXPECT_EQ(b, 128u);
  EXPECT_EQ(c, 256u);
  EXPECT_FALSE(map.take(1024));
  map.give(a);
  map.give(c);
  EXPECT_EQ(map.take(704).value(), 320u - 128u);
  map.give(192);
  map.give(b);
  EXPECT_EQ(map.gaps().size(), 1U);
  EXPECT_EQ(map.take(1024).value(), 0u);
  EXPECT_THROW(map.give(64), Error);
}

TEST(BlockMap, LargeBlocksTakeTheSmallestGapThatFits) {
  constexpr size_t kLarge = BlockMap::kLarge;
  BlockMap map(16 * kLarge);
  const size_t first = map.take(4 * kLarge).value(), wall = map.take(kLarge).value();
  const size_t second = map.take(2 * kLarge).value();
  map.take(kLarge).value();
  map.give(first);
  map.give(second);
  EXPECT_EQ(map.take(2 * kLarge), second);  // the gap of 4 comes first, and stays whole
  EXPECT_EQ(map.take(kLarge / 2), first);   // a small block takes the first
  map.give(wall);
  EXPECT_EQ(map.take(4 * kLarge), first + kLarge / 2);
}

TEST(BlockMap, StaysBeforeAnEnd) {
  BlockMap map(1024);
  const size_t first = map.take(192).value();
  EXPECT_FALSE(map.take(128, 64, 256));
  EXPECT_FALSE(map.take(64, 256, 256));
  EXPECT_EQ(map.take(64, 64, 256), 192u);
  EXPECT_FALSE(map.take(64, 64, 256));
  map.give(first);
  EXPECT_EQ(map.take(128, 64, 256), 0u);
}

TEST(BlockMap, NeverHandsOutTheSameBytesTwice) {
  std::mt19937 random(7);
  BlockMap map(1 << 20);
  std::map<size_t, size_t> taken;
  for (int round = 0; round < 20000; ++round) {
    if (random() % 2 == 0 && !taken.empty()) {
      auto victim = std::next(taken.begin(), random() % taken.size());
      map.give(victim->first);
      taken.erase(victim);
      continue;
    }
    const size_t bytes = 1 + random() % 30000, alignment = size_t{64} << random() % 7;
    const auto offset = map.take(bytes, alignment);
    if (!offset) continue;
    ASSERT_EQ(*offset % alignment, 0u);
    ASSERT_LE(*offset + bytes, size_t{1} << 20);
    auto after = taken.lower_bound(*offset);
    ASSERT_TRUE(after == taken.end() || *offset + bytes <= after->first);
    ASSERT_TRUE(after == taken.begin() || std::prev(after)->first + std::prev(after)->second <= *offset);
    taken[*offset] = bytes;
  }
}

TEST(SharedMemory, OneTensorForAllRanks) {
  run_ranks(
      3,
      [](Mesh mesh) {
        Group dp = mesh.group("dp");
        ASSERT_TRUE(dp.shares_memory());
        for (int round = 0; round < 3; ++round) {
          at::Tensor all = detail::common_tensor(dp, 3 * 1000, at::kFloat, "slab");
          EXPECT_EQ(all.sum().item<float>(), 0);
          dp.barrier("read");
          at::Tensor mine = all.narrow(0, dp.rank() * 1000, 1000);
          mine.fill_(dp.rank() + 1);
          dp.all_gather(all, mine, "slab").wait();
          EXPECT_EQ(all.sum().item<float>(), 6000);
          dp.barrier("read");
          if (dp.rank() == 1) all[2500] = 50;  // another rank's part: still the same memory
          dp.barrier("written");
          EXPECT_EQ(all[2500].item<float>(), 50);
        }
      },
      shared_memory());
}

TEST(SharedMemory, BlocksComeBackWhenAllRanksHaveLetGo) {
  run_ranks(
      2,
      [](Mesh mesh) {
        Group dp = mesh.group("dp");
        for (int round = 0; round < 200; ++round) {  // 200 x 16 MiB would not fit into a segment
          at::Tensor all = detail::common_tensor(dp, 1 << 22, at::kFloat, "slab");
          all[dp.rank()] = round;
          all.reset();
          dp.barrier("let go");
        }
        std::ifstream maps("/proc/self/maps");
        int segments = 0;
        for (std::string line; std::getline(maps, line);)
          segments += line.find("memfd:zero") != std::string::npos;
        EXPECT_LE(segments, 6);  // boards of two groups, both first segments
      },
      shared_memory());
}

TEST(SharedMemory, ReduceScatterReadsInPlaceAndAddsInRankOrder) {
  run_ranks(
      3,
      [](Mesh mesh) {
        Group dp = mesh.group("dp");
        for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
          at::Tensor in = detail::input_tensor(dp, 3 * 5000, dtype);
          std::vector<at::Tensor> all;
          for (int rank = 0; rank < 3; ++rank) {
            at::manual_seed(rank);
            all.push_back(at::randn({15000}).to(dtype));
          }
          in.copy_(all[dp.rank()]);
          at::Tensor first = at::full({2000}, 7.0), second = at::full({3000}, 5.0);
          detail::reduce_scatter(dp, {{first, false}, {second, true}}, in, "grads").wait();
          at::Tensor expected = at::zeros({5000});
          for (auto& tensor : all) expected += tensor.narrow(0, dp.rank() * 5000, 5000).to(at::kFloat);
          EXPECT_TRUE(at::equal(first, expected.narrow(0, 0, 2000)));
          EXPECT_TRUE(at::equal(second, expected.narrow(0, 2000, 3000) + 5));
          // This rank's own elements may lie elsewhere; in `in` they then mean nothing.
          at::Tensor own = in.narrow(0, dp.rank() * 5000 + 2000, 3000).clone();
          in.narrow(0, dp.rank() * 5000 + 2000, 3000).fill_(1000);
          detail::reduce_scatter(dp, {{first, false}, {second, false, own}}, in, "grads").wait();
          EXPECT_TRUE(at::equal(first, expected.narrow(0, 0, 2000)));
          EXPECT_TRUE(at::equal(second, expected.narrow(0, 2000, 3000)));
          in.zero_();  // wait() has returned: nobody reads it any more
        }
      },
      shared_memory());
}

// Rank 0 joins an operation and does something else until rank 1 says that it has what it waited for.
TEST(SharedMemory, OutputsComeWhileTheOtherRankIsBusyElsewhere) {
  const SignalPipe joined, came, reads;
  run_ranks(
      2,
      [&](Mesh mesh) {
        Group dp = mesh.group("dp");
        for (bool in_place : {false, true}) {
          at::Tensor in = in_place ? detail::input_tensor(dp, 200000, at::kFloat) : at::empty({200000});
          in.fill_(dp.rank() + 1);
          at::Tensor out = at::empty({100000});
          // Rank 0 is first: the second to join may read at once.
          if (dp.rank() == 1) {
            EXPECT_TRUE(joined.take(seconds(20)));
          }
          Work work = dp.reduce_scatter(out, in, false, "grads");
          if (dp.rank() == 0) {
            joined.give();
            EXPECT_TRUE(came.take(seconds(20))) << "rank 1's output waits for rank 0, in place: " << in_place;
            if (in_place) reads.give();
            work.wait();
          } else {
            work.wait_output();
            EXPECT_EQ(out.sum().item<float>(), 300000);
            if (in_place) came.give();
            work.wait();  // in place: until rank 0 has read too
            if (in_place) {
              EXPECT_TRUE(reads.take(milliseconds(0))) << "rank 0 has not read yet";
            }
            if (!in_place) came.give();
          }
        }
      },
      shared_memory());
}

// What was copied for others to read is gone when a gather has been waited for, whenever they come by.
TEST(SharedMemory, CopiesOfAGatherGoWithIt) {
  const SignalPipe began;
  run_ranks(
      2,
      [&](Mesh mesh) {
        Group dp = mesh.group("dp");
        const at::Tensor in = at::full({100000}, dp.rank() + 1.0F);
        at::Tensor out = at::empty({200000});
        const int64_t before = memory_in_use().used_bytes;
        // Rank 1 has posted when rank 0 does, and so reads only when it looks again.
        if (dp.rank() == 0) {
          EXPECT_TRUE(began.take(seconds(20)));
        }
        Work work = dp.all_gather(out, in, "slab");
        EXPECT_GT(memory_in_use().used_bytes, before);
        if (dp.rank() == 1) {
          began.give();
          std::this_thread::sleep_for(milliseconds(200));
        }
        work.wait_output();
        EXPECT_EQ(memory_in_use().used_bytes, before) << "rank " << dp.rank();
        EXPECT_EQ(out.sum().item<float>(), 300000);
      },
      shared_memory());
}

TEST(SharedMemory, OperationsMayBeWaitedForInAnyOrder) {
  run_ranks(
      4,
      [](Mesh mesh) {
        Group dp = mesh.group("dp");
        std::mt19937 random(dp.rank());
        for (int round = 0; round < 20; ++round) {
          std::vector<Work> works;
          std::vector<at::Tensor> outs, ins;
          for (int op = 0; op < 12; ++op) {
            at::Tensor in =
                op % 3 == 0 ? at::empty({4 * 700}) : detail::input_tensor(dp, 4 * 700, at::kFloat);
            in.fill_(op + dp.rank());
            at::Tensor out = at::empty({op % 2 == 0 ? 700 : 16 * 700});
            works.push_back(op % 2 == 0 ? dp.reduce_scatter(out, in, false, "op " + std::to_string(op))
                                        : dp.all_gather(out, in, "op " + std::to_string(op)));
            outs.push_back(out);
            ins.push_back(in);
          }
          std::vector<int> order(works.size());
          std::iota(order.begin(), order.end(), 0);
          std::shuffle(order.begin(), order.end(), random);
          for (int op : order) {
            works[op].wait();
            EXPECT_EQ(outs[op].sum().item<float>(),
                      op % 2 == 0 ? 700 * (4 * op + 6) : 4 * 700 * (4 * op + 6));
          }
        }
      },
      shared_memory());
}

TEST(SharedMemory, MoreMessagesThanTheRingHolds) {
  run_ranks(
      3,
      [](Mesh mesh) {
        Group dp = mesh.group("dp");
        constexpr int kMany = 1000;
        std::vector<at::Tensor> tensors;
        std::vector<Work> works;
        for (int i = 0; i < kMany; ++i) {
          tensors.push_back(at::full({3}, dp.rank() == 0 ? i : -1));
          if (dp.rank() == 0) works.push_back(dp.send(tensors.back(), 1, i, "many"));
          if (dp.rank() == 1) works.push_back(dp.receive(tensors.back(), 0, i, "many"));
        }
        if (dp.rank() == 1) std::reverse(works.begin(), works.end());
        if (dp.rank() != 1)
          for (Work& work : works) work.wait();
        if (dp.rank() == 1)
          for (size_t i = works.size(); i-- > 0;) works[i].wait();
        for (int i = 0; dp.rank() == 1 && i < kMany; ++i) EXPECT_EQ(tensors[i].sum().item<float>(), 3 * i);
        dp.barrier("end");
      },
      shared_memory());
}

TEST(SharedMemory, ManyRanks) {
  run_ranks(
      24,
      [](Mesh mesh) {
        Group dp = mesh.group("dp");
        at::Tensor sum = at::full({100000}, dp.rank() + 1.0);
        dp.all_reduce(sum, Group::Reduce::Sum, "sum").wait();
        EXPECT_EQ(sum.sum().item<float>(), 100000 * 300.0f);
        at::Tensor small = at::full({1}, dp.rank() + 1.0);
        dp.all_reduce(small, Group::Reduce::Max, "max").wait();
        EXPECT_EQ(small.item<float>(), 24);
      },
      shared_memory());
}

TEST(SharedMemory, DeadRankIsNoticedAtOnce) {
  RankOptions options = shared_memory();
  options.mesh.timeout = seconds(60);
  auto results = collect_ranks(
      2,
      [](Mesh mesh) {
        mesh.group("dp").barrier("begin");
        if (mesh.rank() == 1) kill(getpid(), SIGKILL);
        const auto began = Clock::now();
        try {
          mesh.group("dp").barrier("end");
        } catch (const Error&) {
          EXPECT_LT(Clock::now() - began, seconds(20));  // of 60
          throw;
        }
      },
      options);
  EXPECT_NE(results[0].error.find("rank 1"), std::string::npos) << results[0].error;
  EXPECT_TRUE(results[0].failures.empty());
}

TEST(SharedMemory, NothingIsLeftBehind) {
  run_ranks(
      2,
      [](Mesh mesh) {
        Group dp = mesh.group("dp");
        at::Tensor all = detail::common_tensor(dp, 1000, at::kFloat, "slab");
        EXPECT_EQ(all.numel(), 1000);
      },
      shared_memory());
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    EXPECT_EQ(entry.path().filename().string().find("zero"), std::string::npos) << entry.path();
}

// Four ranks that say they are on two hosts.
TEST(Hosts, SharedMemoryInsideAndGlooAcross) {
  auto results = collect_processes(4, [](Rendezvous rendezvous) {
    MeshOptions options;
    options.timeout = seconds(30);
    options.host = rendezvous.rank < 2 ? "a" : "b";
    Mesh mesh = Mesh::join(rendezvous, options);
    Group dp = mesh.group("dp");
    EXPECT_FALSE(dp.shares_memory());
    Mesh::Blocks blocks = mesh.split("dp", 2);
    EXPECT_TRUE(blocks.inner.shares_memory());
    EXPECT_FALSE(blocks.outer.shares_memory());
    at::Tensor out = at::empty({4 * 1000}), in = at::full({1000}, mesh.rank() + 1.0);
    dp.all_gather(out, in, "gather").wait();
    EXPECT_EQ(out.sum().item<float>(), 10000);
    at::Tensor part = at::empty({1000});
    dp.reduce_scatter(part, out * (mesh.rank() + 1), false, "reduce").wait();
    EXPECT_EQ(part.sum().item<float>(), 1000.0f * 10 * (mesh.rank() + 1));
    at::Tensor root = at::full({7}, mesh.rank() * 1.0);
    dp.broadcast(root, 2, "root").wait();
    EXPECT_EQ(root.sum().item<float>(), 14);
    at::Tensor sum = at::full({200000}, mesh.rank() + 1.0);
    dp.all_reduce(sum, Group::Reduce::Sum, "sum").wait();
    EXPECT_EQ(sum.sum().item<float>(), 2000000);
    blocks.outer.all_reduce(sum, Group::Reduce::Sum, "outer").wait();
    dp.barrier("end");
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.error, "");
    for (const auto& failure : result.failures) ADD_FAILURE() << failure;
  }
}

TEST(Hosts, SharedMemoryAloneIsRefusedAcross) {
  auto results = collect_processes(2, [](Rendezvous rendezvous) {
    MeshOptions options;
    options.timeout = seconds(10);
    options.transport = "shm";
    options.host = rendezvous.rank == 0 ? "a" : "b";
    Mesh::join(rendezvous, options);
  });
  for (const auto& result : results)
    EXPECT_NE(result.error.find("several hosts"), std::string::npos) << result.error;
}

}  // namespace
}  // namespace zero
