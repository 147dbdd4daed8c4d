// The NCCL transport over a libnccl of our own: which calls it makes, in which order, on which streams, and
// what becomes of its errors.
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "mesh/group_parts.h"
#include "support/collective_round.h"
#include "support/device_training.h"
#include "support/fake_nccl_ranks.h"

namespace zero::virtual_device::testing {
namespace {

using namespace zero::testing;
using torch::Tensor;

const AdamW kAdamW{.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

torch::TensorOptions here(const Mesh& mesh, at::ScalarType type = at::kFloat) {
  return torch::TensorOptions(mesh.device()).dtype(type);
}

TEST(Nccl, CollectivesHaveTheCpusBits) {
  expect_the_cpus_collectives(3, on_fake_nccl(), [](const Mesh&) { expect_no_faults(); });
}

// Bytes wherever nothing is added up; sends and receives of an exchange are one group; no call twice.
TEST(Nccl, CallsAreThoseOfTheContract) {
  run_ranks(
      3,
      [](Mesh mesh) {
        const Group world = mesh.world();
        const std::string rank = std::to_string(mesh.rank());
        const auto expect_calls = [](const std::string& expected) { EXPECT_EQ(nccl_calls(), expected); };
        Tensor all = at::empty({15}, here(mesh)), part = at::ones({5}, here(mesh));
        nccl_calls();
        world.all_gather(all, part, "gather").wait();
        expect_calls("AllGather 20 uint8\n");
        // In place: NCCL asks for this rank's own part of the output.
        Tensor own = all.narrow(0, 5 * mesh.rank(), 5);
        world.all_gather(all, own, "gather").wait();
        expect_calls("AllGather 20 uint8\n");
        const Tensor gradients = at::ones({15}, here(mesh, at::kBFloat16));
        Tensor sum = at::empty({5}, here(mesh));
        world.reduce_scatter(sum, gradients, false, "scatter").wait();
        const int next = (mesh.rank() + 1) % 3, last = (mesh.rank() + 2) % 3;
        const auto pair = [](int to, int from) {
          return "Send 10 uint8 to " + std::to_string(to) + "\nRecv 10 uint8 from " + std::to_string(from) +
                 "\n";
        };
        expect_calls("GroupStart\n" + pair(next, last) + pair(last, next) + "GroupEnd\n");
        Tensor told = at::ones({4}, here(mesh, at::kLong));
        world.broadcast(told, 2, "tell").wait();
        expect_calls("Broadcast 32 uint8 from 2\n");
        EXPECT_TRUE(at::equal(sum.cpu(), at::full({5}, 3.0F)));
        expect_no_faults();
      },
      on_fake_nccl());
}

// A pair's two directions wait for each other on no stream.
TEST(Nccl, MessagesHaveACommunicatorForEachDirection) {
  run_ranks(
      2,
      [](Mesh mesh) {
        const int peer = 1 - mesh.rank();
        Tensor mine = at::full({6}, 1.0F + static_cast<float>(mesh.rank()), here(mesh));
        Tensor theirs = at::empty({6}, here(mesh));
        nccl_calls();
        for (int round = 0; round < 2; ++round) {
          zero::Work sent = mesh.world().send(mine, peer, 1, "pass");
          zero::Work received = mesh.world().receive(theirs, peer, 1, "pass");
          received.wait();
          sent.wait();
          EXPECT_TRUE(at::equal(theirs.cpu(), at::full({6}, 2.0F - static_cast<float>(mesh.rank()))));
        }
        const std::string calls = nccl_calls();
        EXPECT_NE(calls.find("Send 24 uint8 to 1\n"), std::string::npos) << calls;
        EXPECT_NE(calls.find("Recv 24 uint8 from 0\n"), std::string::npos) << calls;
        size_t made = 0;
        for (size_t at = calls.find("CommInitRank"); at != std::string::npos;
             at = calls.find("CommInitRank", at + 1))
          ++made;
        EXPECT_EQ(made, 2U) << "once for each direction: " << calls;
        expect_no_faults();
      },
      on_fake_nccl());
}

// A kernel that reads an output before it waited is named, as on the virtual transport.
TEST(Nccl, WaitingIsWhatOrdersStreams) {
  run_ranks(
      2,
      [](Mesh mesh) {
        Tensor in = at::ones({8}, here(mesh)), out = at::empty({16}, here(mesh));
        zero::Work work = mesh.world().all_gather(out, in, "gather");
        out.neg();
        work.wait();
        own_devices().synchronize();
        ASSERT_FALSE(own_devices().faults().empty());
        EXPECT_NE(own_devices().faults()[0].text.find("ncclAllGather"), std::string::npos)
            << own_devices().faults()[0].text;
        own_devices().clear_faults();
      },
      on_fake_nccl());
}

TEST(NcclFast, GradientsAreSummedByNcclInTheirOwnType) {
  run_ranks(
      3,
      [](Mesh mesh) {
        const Group world = mesh.world();
        const Tensor values = at::arange(15, here(mesh)) + mesh.rank() / 3.0;
        Tensor sum = at::empty({5}, here(mesh)), more = at::full({5}, 100.0F, here(mesh));
        nccl_calls();
        world.reduce_scatter(sum, values, false, "scatter").wait();
        EXPECT_EQ(nccl_calls(), "ReduceScatter 5 float32\n");
        world.reduce_scatter(more, values.to(at::kBFloat16), true, "scatter").wait();
        EXPECT_EQ(nccl_calls(), "ReduceScatter 5 bfloat16\n");
        const Tensor exact = 3 * (at::arange(5) + 5.0F * static_cast<float>(mesh.rank())) + 1.0F;
        EXPECT_TRUE(at::allclose(sum.cpu(), exact, 1e-6, 1e-6)) << sum.cpu();
        EXPECT_TRUE(at::allclose(more.cpu() - 100, exact, 0.02, 0.02)) << more.cpu();
        // Norms, losses and statistics are added in rank order all the same.
        Tensor norm = at::ones({3}, here(mesh, at::kDouble));
        world.all_reduce(norm, Group::Reduce::Sum, "norm").wait();
        EXPECT_EQ(nccl_calls(), "AllGather 24 uint8\n");
        expect_no_faults();
      },
      on_fake_nccl(Communication::fast));
}

// What this rank adds may lie elsewhere, and several outputs share one sum.
TEST(NcclFast, PartsAndOwnValuesAreThoseOfTheExactSum) {
  const auto body = [](Mesh mesh) {
    const Tensor in = at::full({12}, 1.0F + static_cast<float>(mesh.rank()), here(mesh));
    Tensor first = at::ones({4}, here(mesh)), second = at::ones({2}, here(mesh));
    const Tensor own = at::full({4}, 10.0F, here(mesh));
    detail::reduce_scatter(mesh.world(), {{first, true, own}, {second, false, {}}}, in, "parts").wait();
    hand_back(first.cpu());
    hand_back(second.cpu());
  };
  const auto exact = run_ranks(2, body), fast = run_ranks(2, body, on_fake_nccl(Communication::fast));
  expect_same_results(exact, fast);
}

class NcclStages : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, NcclStages, ::testing::Range(0, 4));

TEST_P(NcclStages, TheEngineHasTheCpusBits) {
  EngineOptions options;
  options.stage = GetParam();
  options.dtype = Dtype::bf16;
  options.accumulation_steps = 2;
  const auto train = [&](Mesh mesh) {
    train_small_net(mesh, kAdamW, options);
    if (!mesh.device().is_cpu()) expect_no_faults();
  };
  expect_same_results(run_ranks(2, train), run_ranks(2, train, on_fake_nccl()));
}

// The first loss is before any sum; from then on the two may differ in last bits, and no more.
TEST_P(NcclStages, TheEngineTrainsAlikeWithFastSums) {
  EngineOptions options;
  options.stage = GetParam();
  const auto train = [&](Mesh mesh) {
    train_small_net(mesh, kAdamW, options);
    if (mesh.device().is_cpu()) return;
    EXPECT_NE(nccl_calls().find("ReduceScatter"), std::string::npos);
    expect_no_faults();
  };
  const auto exact = run_ranks(3, train);
  const auto fast = run_ranks(3, train, on_fake_nccl(Communication::fast));
  for (size_t rank = 0; rank < exact.size(); ++rank) {
    ASSERT_EQ(exact[rank].bytes.size(), fast[rank].bytes.size());
    const auto numbers = [&](const RankResult& result) {  // a loss and a norm for each step
      return tensor_from_bytes(result.bytes.substr(0, 6 * sizeof(double)), at::kDouble);
    };
    EXPECT_TRUE(at::allclose(numbers(exact[rank]), numbers(fast[rank]), 1e-4))
        << numbers(exact[rank]) << numbers(fast[rank]);
  }
}

TEST(NcclFast, OtherTransportsRefuseIt) {
  for (const bool is_virtual : {false, true}) {
    RankOptions options = is_virtual ? on_virtual_devices() : RankOptions();
    options.mesh.communication = Communication::fast;
    if (!is_virtual) options.mesh.transport = "gloo";
    for (const RankResult& rank : collect_ranks(
             2, [](Mesh) {}, options)) {
      EXPECT_EQ(rank.exit, 1);
      EXPECT_NE(rank.error.find("mesh communication: fast is NCCL's"), std::string::npos) << rank.error;
      EXPECT_NE(rank.error.find("set communication to exact"), std::string::npos) << rank.error;
    }
  }
}

TEST(NcclFailure, ACallThatFailsIsNamedWithItsOperation) {
  RankOptions options = on_fake_nccl();
  options.mesh.timeout = std::chrono::seconds(2);
  const auto ranks = collect_ranks(
      2,
      [](Mesh mesh) {
        fake_nccl<FakeNcclFail>("fake_nccl_fail")("AllGather", 4);
        Tensor out = at::empty({2}, here(mesh));
        mesh.world().all_gather(out, at::ones({1}, here(mesh)), "layer.3").wait();
      },
      options);
  for (const RankResult& rank : ranks) {
    EXPECT_NE(rank.error.find("all_gather layer.3 (#1) in group world"), std::string::npos) << rank.error;
    EXPECT_NE(rank.error.find("ncclAllGather: invalid argument (4)"), std::string::npos) << rank.error;
  }
}

}  // namespace
}  // namespace zero::virtual_device::testing
