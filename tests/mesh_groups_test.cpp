// Axes, blocks, point to point, traffic, checks before anything is sent, dropped work.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "support/ranks.h"
#include "zero/error.h"
#include "zero/mesh.h"

namespace zero {
namespace {

using testing::RankOptions;
using testing::run_ranks;

std::vector<int> members(const Group& group) { return {group.members().begin(), group.members().end()}; }

// The sum of the members' mesh ranks, found by talking.
float sum_of_ranks(const Mesh& mesh, const Group& group) {
  at::Tensor value = at::full({1}, mesh.rank(), at::kFloat);
  group.all_reduce(value, Group::Reduce::Sum, "ranks").wait();
  return value.item<float>();
}

ErrorKind kind_of(const std::function<void()>& call, std::string* text = nullptr) {
  try {
    call();
  } catch (const Error& error) {
    if (text) *text = error.what();
    return error.kind();
  }
  ADD_FAILURE() << "no error";
  return ErrorKind::Internal;
}

TEST(Axes, AreTheRanksThatDifferAlongOne) {
  RankOptions options;
  options.mesh.axes = {{"pp", 2}, {"dp", -1}, {"tp", 2}};
  run_ranks(
      4,
      [](Mesh mesh) {
        int rank = mesh.rank();
        ASSERT_EQ(mesh.axes().size(), 3);
        EXPECT_EQ(mesh.axes()[1].name, "dp");
        EXPECT_EQ(mesh.axes()[1].size, 1);
        EXPECT_EQ(members(mesh.group("pp")), (std::vector<int>{rank % 2, rank % 2 + 2}));
        EXPECT_EQ(members(mesh.group("dp")), std::vector<int>{rank});
        EXPECT_EQ(members(mesh.group("tp")), (std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}));
        EXPECT_EQ(mesh.group("pp").rank(), rank / 2);
        EXPECT_EQ(sum_of_ranks(mesh, mesh.group("pp")), 2 * (rank % 2) + 2);
        EXPECT_EQ(sum_of_ranks(mesh, mesh.group("tp")), rank < 2 ? 1 : 5);
        EXPECT_EQ(sum_of_ranks(mesh, mesh.group("dp")), rank);
        EXPECT_EQ(sum_of_ranks(mesh, mesh.world()), 6);
      },
      options);
}

TEST(Axes, SplitIntoBlocks) {
  run_ranks(6, [](Mesh mesh) {
    int rank = mesh.rank();
    for (int inner : {1, 2, 3, 6}) {
      auto blocks = mesh.split("dp", inner);
      EXPECT_EQ(blocks.inner.size(), inner);
      EXPECT_EQ(blocks.outer.size(), 6 / inner);
      EXPECT_EQ(blocks.inner.members()[0], rank / inner * inner);
      EXPECT_EQ(blocks.outer.members()[0], rank % inner);
      int first = rank / inner * inner;
      EXPECT_EQ(sum_of_ranks(mesh, blocks.inner), inner * first + inner * (inner - 1) / 2);
      float outer = 0;
      for (int other = rank % inner; other < 6; other += inner) outer += other;
      EXPECT_EQ(sum_of_ranks(mesh, blocks.outer), outer);
    }
    // Cached: nothing to connect, so one rank may ask alone.
    if (rank == 3) {
      EXPECT_EQ(mesh.split("dp", 2).inner.traffic().calls, 1);
    }
  });
}

TEST(Axes, ThatDoNotFitAreRefusedBeforeJoining) {
  Rendezvous alone;
  auto refused = [&](std::vector<Axis> axes, const std::string& words) {
    MeshOptions options;
    options.axes = std::move(axes);
    std::string text;
    EXPECT_EQ(kind_of([&] { Mesh::join(alone, options); }, &text), ErrorKind::Config);
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  refused({}, "there are none");
  refused({{"dp", 2}}, "needs more ranks than the 1");
  refused({{"dp", -1}, {"tp", -1}}, "more than one size is left open");
  refused({{"dp", 1}, {"dp", 1}}, "dp is named twice");
  refused({{"dp", 0}}, "must be at least 1");
  refused({{"world", 1}}, "bad name");
  Mesh mesh = Mesh::join(alone);
  EXPECT_EQ(kind_of([&] { mesh.group("tp"); }), ErrorKind::Usage);
  EXPECT_EQ(kind_of([&] { mesh.split("dp", 2); }), ErrorKind::Config);
  Rendezvous three;
  three.size = 3;
  three.port = 1;
  MeshOptions options;
  options.axes = {{"dp", -1}, {"tp", 2}};
  std::string text;
  EXPECT_EQ(kind_of([&] { Mesh::join(three, options); }, &text), ErrorKind::Config);
  EXPECT_NE(text.find("do not divide the 3 ranks"), std::string::npos) << text;
}

TEST(Axes, DisagreeingRanksAreNamed) {
  auto results = testing::collect_processes(2, [](const Rendezvous& rendezvous) {
    MeshOptions options;
    options.timeout = std::chrono::seconds(10);
    options.axes = {{"dp", -1}, {"tp", rendezvous.rank == 0 ? 1 : 2}};
    Mesh::join(rendezvous, options);
  });
  EXPECT_NE(results[0].error.find("config error"), std::string::npos) << results[0].error;
  EXPECT_NE(results[0].error.find("rank 1 is dp=1 x tp=2"), std::string::npos) << results[0].error;
}

TEST(WorldOfOne, IsAMesh) {
  Mesh mesh = Mesh::join({});
  EXPECT_EQ(mesh.size(), 1);
  at::Tensor in = at::rand({8});
  at::Tensor out = at::empty({8});
  mesh.world().all_gather(out, in, "unit").wait();
  EXPECT_TRUE(at::equal(out, in));
  mesh.group("dp").reduce_scatter(out, in.to(at::kBFloat16), true, "unit").wait();
  EXPECT_TRUE(at::equal(out, in + in.to(at::kBFloat16).to(at::kFloat)));
  mesh.world().barrier("unit");
  mesh.report_failure("nobody listens");
  EXPECT_EQ(mesh.world().traffic().calls, 0);
}

TEST(PointToPoint, MatchesTagsWhateverTheOrder) {
  run_ranks(3, [](Mesh mesh) {
    Group world = mesh.world();
    int next = (mesh.rank() + 1) % 3;
    int previous = (mesh.rank() + 2) % 3;
    at::Tensor first = at::full({1000}, mesh.rank() * 10), second = first + 1;
    at::Tensor got_first = at::empty({1000}, first.options()), got_second = got_first.clone();
    Work receive_second = world.receive(got_second, previous, -2, "second");
    Work receive_first = world.receive(got_first, previous, 1, "first");
    Work send_first = world.send(first, next, 1, "first");
    Work send_second = world.send(second, next, -2, "named otherwise");
    for (Work* work : {&receive_first, &send_first, &receive_second, &send_second}) work->wait();
    EXPECT_EQ(got_first[0].item<int>(), previous * 10);
    EXPECT_EQ(got_second[999].item<int>(), previous * 10 + 1);
  });
}

TEST(Traffic, IsCountedAsThePaperCounts) {
  run_ranks(2, [](Mesh mesh) {
    Group dp = mesh.group("dp");
    at::Tensor full = at::zeros({100}, at::kBFloat16), half = at::zeros({50}, at::kBFloat16);
    at::Tensor sum = at::zeros({50}), small = at::zeros({10}, at::kDouble);
    dp.all_gather(full, half, "u").wait();
    dp.reduce_scatter(sum, full, false, "u").wait();
    dp.all_reduce(small, Group::Reduce::Sum, "u").wait();
    dp.barrier("u");
    EXPECT_EQ(dp.traffic(Operation::AllGather).elements, 100);
    EXPECT_EQ(dp.traffic(Operation::AllGather).bytes, 200);
    EXPECT_EQ(dp.traffic(Operation::ReduceScatter).elements, 100);
    EXPECT_EQ(dp.traffic(Operation::AllReduce).elements, 20);
    EXPECT_EQ(dp.traffic(Operation::AllReduce).bytes, 160);
    EXPECT_EQ(dp.traffic(Operation::Broadcast).calls, 0);
    EXPECT_EQ(dp.traffic().elements, 220);
    EXPECT_EQ(dp.traffic().calls, 4);
    EXPECT_EQ(mesh.world().traffic().calls, 0);
  });
}

TEST(Checks, RefuseBeforeAnythingIsSent) {
  run_ranks(2, [](Mesh mesh) {
    Group dp = mesh.group("dp");
    at::Tensor four = at::zeros({4}), two = at::zeros({2});
    auto refused = [](const std::function<void()>& call, const std::string& words) {
      std::string text;
      EXPECT_EQ(kind_of(call, &text), ErrorKind::Usage);
      EXPECT_NE(text.find(words), std::string::npos) << text;
    };
    // Only one rank does wrong: had it sent anything, the others' next operation would differ from its own.
    if (mesh.rank() == 0) {
      refused([&] { dp.all_gather(at::zeros({5}), two, "h.0"); },
              "all_gather h.0 in group dp: out has 5 elements, expected 4");
      refused([&] { dp.all_gather(four, two.to(at::kDouble), "h.0"); }, "out is Float, in is Double");
      refused([&] { dp.all_gather(at::zeros({4, 4}).t(), at::zeros({8}), "h.0"); }, "out is not contiguous");
      refused([&] { dp.all_gather(at::Tensor(), two, "h.0"); }, "undefined");
      refused([&] { dp.all_gather(at::zeros({4}, at::kMeta), two, "h.0"); }, "on meta, the mesh on cpu");
      refused([&] { dp.reduce_scatter(two, at::zeros({5}), false, "h.0"); }, "in has 5 elements, expected 4");
      refused([&] { dp.reduce_scatter(two.to(at::kHalf), four, false, "h.0"); }, "out must be fp32");
      refused([&] { dp.reduce_scatter(two, four.to(at::kLong), false, "h.0"); },
              "expected fp32, bf16 or fp16");
      refused([&] { dp.all_reduce(at::zeros({2}, at::kLong), Group::Reduce::Sum, "h.0"); },
              "the tensor is Long, expected fp32, fp64, bf16 or fp16");
      refused([&] { dp.broadcast(two, 2, "h.0"); }, "root is rank 2 of a group of 2");
      refused([&] { dp.send(two, 0, 0, "h.0"); }, "to itself");
      refused([&] { dp.receive(two, -1, 0, "h.0"); }, "rank -1");
    }
    dp.all_gather(four, two + mesh.rank(), "h.1").wait();
    EXPECT_EQ(four[3].item<float>(), 1);
  });
}

TEST(Checks, EmptyTensorsNeedNoTransport) {
  run_ranks(2, [](Mesh mesh) {
    at::Tensor none = at::empty({0});
    mesh.world().all_gather(none, none, "u").wait();
    mesh.world().reduce_scatter(none, none, false, "u").wait();
    mesh.world().all_reduce(none, Group::Reduce::Max, "u").wait();
    mesh.world().broadcast(none, 1, "u").wait();
    mesh.world().barrier("u");
  });
}

TEST(DroppedWork, DisturbsNothing) {
  run_ranks(3, [](Mesh mesh) {
    Group world = mesh.world();
    for (int step = 0; step < 20; ++step) {
      at::Tensor in = at::full({5000}, step + mesh.rank(), at::kFloat);
      // Ranks drop different ones.
      Work first = world.all_gather(at::empty({15000}), in, "dropped");
      if (step % 3 == mesh.rank()) first.wait();
      first = Work();
      world.all_reduce(at::zeros({100000}), Group::Reduce::Sum, "first half only");
      at::Tensor sum = at::empty({5000});
      world.reduce_scatter(sum, in.repeat({3}), false, "kept").wait();
      EXPECT_EQ(sum[7].item<float>(), 3 * step + 3);
    }
  });
}

TEST(DroppedWork, MayOutliveTheMesh) {
  run_ranks(2, [](Mesh mesh) {
    Work work = mesh.world().all_gather(at::empty({200000}), at::zeros({100000}), "outlives");
    Mesh gone = std::move(mesh);
    gone = Mesh::join({});
    work.wait();
  });
}

TEST(ManyInFlight, FinishInAnyOrderAndDelaysChangeNothing) {
  run_ranks(3, [](Mesh mesh) {
    Group world = mesh.world();
    std::vector<at::Tensor> gathered, sums;
    std::vector<Work> gathers, reduces;
    for (int unit = 0; unit < 12; ++unit) {
      if ((unit + mesh.rank()) % 4 == 0) usleep(3000 * (mesh.rank() + 1));
      at::Tensor part = at::full({20000}, unit * 10 + mesh.rank(), at::kFloat);
      gathered.push_back(at::empty({60000}));
      gathers.push_back(world.all_gather(gathered.back(), part, "h." + std::to_string(unit)));
      sums.push_back(at::empty({20000}));
      reduces.push_back(
          world.reduce_scatter(sums.back(), part.repeat({3}), false, "h." + std::to_string(unit)));
    }
    for (int unit = 11; unit >= 0; --unit) {
      reduces[unit].wait();
      EXPECT_EQ(sums[unit][100].item<float>(), 30 * unit + 3);
    }
    for (int unit = 0; unit < 12; ++unit) {
      gathers[unit].wait();
      EXPECT_EQ(gathered[unit][59999].item<float>(), unit * 10 + 2);
    }
  });
}

TEST(Options, UnknownAndMissingTransports) {
  auto error_of = [](const std::string& transport, torch::Device device) {
    auto results = testing::collect_processes(2, [&](const Rendezvous& rendezvous) {
      MeshOptions options;
      options.transport = transport;
      options.device = device;
      options.timeout = std::chrono::seconds(20);
      Mesh::join(rendezvous, options);
    });
    return results[1].error;
  };
  EXPECT_NE(error_of("carrier pigeon", torch::kCPU).find("unknown transport \"carrier pigeon\""),
            std::string::npos);
  EXPECT_NE(error_of("nccl", torch::kCPU).find("moves CUDA tensors only"), std::string::npos);
  if (at::hasCUDA()) return;
  const std::string missing = error_of("auto", torch::kCUDA);
  EXPECT_NE(missing.find("unsupported error: transport nccl"), std::string::npos) << missing;
  EXPECT_NE(missing.find("or compute on CPU (parallel.backend"), std::string::npos) << missing;
}

}  // namespace
}  // namespace zero
