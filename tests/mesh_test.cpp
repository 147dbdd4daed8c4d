// Meshes and collectives over Gloo: values, bits, shapes, groups.
#include "zero/mesh.h"

#include <gtest/gtest.h>

#include "mesh/group_parts.h"
#include "support/ranks.h"
#include "zero/error.h"

namespace zero {
namespace {

using testing::RankOptions;
using testing::run_ranks;

// Values that any other order of addition rounds differently.
at::Tensor awkward(int rank, int64_t count, at::ScalarType dtype) {
  at::Tensor index = at::arange(count, at::kDouble);
  return (at::sin(index * 0.7 + rank * 1.3) * at::pow(10.0, (index + rank * 3).remainder(7) - 3)).to(dtype);
}

// The sum in rank order in fp32 (or fp64), written as the contract has it.
at::Tensor serial_sum(int ranks, int64_t begin, int64_t count, int64_t total, at::ScalarType in,
                      at::ScalarType sum) {
  at::Tensor result = awkward(0, total, in).narrow(0, begin, count).to(sum);
  for (int rank = 1; rank < ranks; ++rank)
    result = result + awkward(rank, total, in).narrow(0, begin, count).to(sum);
  return result;
}

class AnySize : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, AnySize, ::testing::Values(1, 2, 3, 4, 7));

TEST_P(AnySize, AllGatherPutsRanksInOrder) {
  run_ranks(GetParam(), [](Mesh mesh) {
    Group world = mesh.world();
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong, at::kByte, at::kBool}) {
      at::Tensor in = at::full({3, 5}, mesh.rank() + 1).to(dtype);
      at::Tensor out = at::zeros({mesh.size() * 15}, dtype);
      world.all_gather(out, in, "unit").wait();
      for (int rank = 0; rank < mesh.size(); ++rank)
        EXPECT_TRUE(at::equal(out.narrow(0, rank * 15, 15), at::full({15}, rank + 1).to(dtype)));
    }
  });
}

TEST_P(AnySize, AllGatherInPlace) {
  run_ranks(GetParam(), [](Mesh mesh) {
    at::Tensor out = at::zeros({mesh.size() * 1000});
    at::Tensor mine = out.narrow(0, mesh.rank() * 1000, 1000);
    mine.fill_(mesh.rank() + 0.5);
    mesh.world().all_gather(out, mine, "unit").wait();
    EXPECT_TRUE(at::equal(out.view({-1, 1000}).select(1, 17), at::arange(mesh.size()) + 0.5));
  });
}

TEST_P(AnySize, ReduceScatterAddsInRankOrder) {
  run_ranks(GetParam(), [](Mesh mesh) {
    for (auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
      for (int64_t count : {1, 13, 1024, 5000}) {
        int64_t total = count * mesh.size();
        at::Tensor out = at::empty({count});
        mesh.world().reduce_scatter(out, awkward(mesh.rank(), total, dtype), false, "unit").wait();
        at::Tensor expected = serial_sum(mesh.size(), mesh.rank() * count, count, total, dtype, at::kFloat);
        EXPECT_TRUE(at::equal(out, expected)) << c10::toString(dtype) << " " << count;
        mesh.world().reduce_scatter(out, awkward(mesh.rank(), total, dtype), true, "unit").wait();
        EXPECT_TRUE(at::equal(out, expected + expected));
        // This rank's own part given apart from the rest, where it then may be anything.
        at::Tensor in = awkward(mesh.rank(), total, dtype);
        const at::Tensor mine = in.narrow(0, mesh.rank() * count, count), own = mine.clone();
        mine.fill_(1000);
        detail::reduce_scatter(mesh.world(), {{out, false, own}}, in, "unit").wait();
        EXPECT_TRUE(at::equal(out, expected));
      }
  });
}

TEST_P(AnySize, AllReduceSmallAndLargeGiveTheSameBits) {
  run_ranks(GetParam(), [](Mesh mesh) {
    for (auto dtype : {at::kFloat, at::kDouble})
      for (int64_t count : {1, 1000, 64 * 1024, 64 * 1024 + 5, 84 * 1024}) {
        at::Tensor sum = awkward(mesh.rank(), count, dtype);
        mesh.world().all_reduce(sum, Group::Reduce::Sum, "unit").wait();
        EXPECT_TRUE(at::equal(sum, serial_sum(mesh.size(), 0, count, count, dtype, dtype))) << count;
        at::Tensor max = awkward(mesh.rank(), count, dtype);
        mesh.world().all_reduce(max, Group::Reduce::Max, "unit").wait();
        at::Tensor expected = awkward(0, count, dtype);
        for (int rank = 1; rank < mesh.size(); ++rank)
          expected = at::maximum(expected, awkward(rank, count, dtype));
        EXPECT_TRUE(at::equal(max, expected));
      }
  });
}

TEST_P(AnySize, AllReduceOfSixteenBitsAddsInFp32AndRoundsOnce) {
  run_ranks(GetParam(), [](Mesh mesh) {
    for (auto dtype : {at::kBFloat16, at::kHalf})
      for (int64_t count : {1, 1000, 64 * 1024 + 5}) {
        at::Tensor sum = awkward(mesh.rank(), count, dtype);
        mesh.world().all_reduce(sum, Group::Reduce::Sum, "unit").wait();
        const at::Tensor expected = serial_sum(mesh.size(), 0, count, count, dtype, at::kFloat).to(dtype);
        EXPECT_TRUE(at::equal(sum, expected)) << c10::toString(dtype) << " " << count;
        if (mesh.size() > 3 && count > 1) {  // rounding every sum gives other bits: the test can tell
          EXPECT_FALSE(at::equal(sum, serial_sum(mesh.size(), 0, count, count, dtype, dtype)));
        }
        at::Tensor max = awkward(mesh.rank(), count, dtype), greatest = awkward(0, count, dtype);
        mesh.world().all_reduce(max, Group::Reduce::Max, "unit").wait();
        for (int rank = 1; rank < mesh.size(); ++rank)
          greatest = at::maximum(greatest, awkward(rank, count, dtype));
        EXPECT_TRUE(at::equal(max, greatest));
      }
  });
}

TEST_P(AnySize, BroadcastAndBarrier) {
  run_ranks(GetParam(), [](Mesh mesh) {
    for (int root = 0; root < mesh.size(); ++root) {
      at::Tensor tensor = at::full({100}, mesh.rank(), at::kInt);
      mesh.world().broadcast(tensor, root, "unit").wait();
      EXPECT_TRUE(at::equal(tensor, at::full({100}, root, at::kInt)));
      mesh.world().barrier("unit");
    }
  });
}

}  // namespace
}  // namespace zero
