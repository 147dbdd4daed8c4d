// Ranks on CUDA devices of their own, by NCCL; skipped by name where there are too few devices.
#include <ATen/ops/ones.h>
#include <unistd.h>

#include "support/collective_round.h"
#include "support/cuda_device.h"
#include "support/device_training.h"

namespace zero {
namespace {

using namespace zero::testing;

constexpr int kRanks = 2;

RankOptions on_cuda(Communication communication = Communication::exact) {
  RankOptions options;
  options.mesh.device = c10::Device(c10::DeviceType::CUDA);
  options.mesh.transport = "nccl";
  options.mesh.communication = communication;
  return options;
}

#define ZERO_NEEDS_DEVICES(count)                                  \
  if (const int devices = count_cuda_devices(); devices < (count)) \
  GTEST_SKIP() << "needs " << (count) << " CUDA devices, there are " << devices

TEST(CudaRanks, CollectivesHaveTheCpusBits) {
  ZERO_NEEDS_DEVICES(3);
  expect_the_cpus_collectives(3, on_cuda(), [](const Mesh&) {});
}

// Sums in rank order: the stages agree to the bit over NCCL as over any transport.
TEST(CudaRanks, StagesAgreeToTheBit) {
  ZERO_NEEDS_DEVICES(kRanks);
  const AdamW rule{.lr = 3e-3};
  const auto trained = [&](int stage) {
    return run_ranks(
        kRanks, [&](Mesh mesh) { train_small_net(mesh, rule, {.stage = stage}); }, on_cuda());
  };
  const auto first = trained(0);
  for (int stage = 1; stage < 4; ++stage) expect_same_results(first, trained(stage));
}

TEST(CudaRanks, FastSumsTrainAlike) {
  ZERO_NEEDS_DEVICES(kRanks);
  const AdamW rule{.lr = 3e-3};
  const auto trained = [&](Communication communication) {
    return run_ranks(
        kRanks, [&](Mesh mesh) { train_small_net(mesh, rule, {.stage = 3}); }, on_cuda(communication));
  };
  const auto exact = trained(Communication::exact), fast = trained(Communication::fast);
  constexpr size_t kNumbersBytes = 6 * sizeof(double);  // a loss and a norm for each step
  for (size_t rank = 0; rank < exact.size(); ++rank)
    EXPECT_TRUE(at::allclose(tensor_from_bytes(exact[rank].bytes.substr(0, kNumbersBytes), at::kDouble),
                             tensor_from_bytes(fast[rank].bytes.substr(0, kNumbersBytes), at::kDouble),
                             1e-4));
}

// A rank that is gone is told of within the timeout, and nobody hangs.
TEST(CudaRanks, ARankThatIsGoneEndsTheOthers) {
  ZERO_NEEDS_DEVICES(kRanks);
  RankOptions options = on_cuda();
  options.mesh.timeout = std::chrono::seconds(5);
  const auto ranks = collect_ranks(
      kRanks,
      [](Mesh mesh) {
        if (mesh.rank() == 1) _exit(0);
        at::Tensor all = at::empty({8}, at::TensorOptions(mesh.device()));
        mesh.world().all_gather(all, at::ones({4}, all.options()), "unit").wait();
        all.cpu();
        mesh.world().barrier("after");
      },
      options);
  EXPECT_NE(ranks[0].error.find("communication error"), std::string::npos) << ranks[0].error;
}

}  // namespace
}  // namespace zero
