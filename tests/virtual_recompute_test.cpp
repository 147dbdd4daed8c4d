// Recomputation on a virtual device: the same bits, no faults, and inputs that wait in memory of the host.
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "support/disk_directory.h"
#include "support/virtual_machine.h"
#include "zero/engine.h"
#include "zero/language_model.h"
#include "zero/lazy.h"
#include "zero/recompute.h"

namespace zero::virtual_device::testing {
namespace {

struct Outcome {
  std::vector<double> losses;
  std::vector<at::Tensor> values;
  int64_t kept_bytes = 0;  // of the device, after the last forward
};

class VirtualRecompute : public OnVirtualDevices {
 protected:
  Outcome train(const RecomputePolicy& policy, int stage) {
    MeshOptions where;
    where.device = device;
    torch::manual_seed(1);
    const auto model = lazily([] {
      return make_language_model(Gpt2Shape{
          .vocab_size = 53, .context_length = 32, .layers = 4, .width = 32, .heads = 4, .dropout = 0.1});
    });
    model->set_recompute(policy);
    Engine engine(*model, AdamW{.lr = 1e-2}, {.stage = stage}, Mesh::join({}, where));
    torch::manual_seed(2);
    const auto all = torch::arange(2 * 17).mul(7).remainder(53).view({2, 17}).to(device);
    const auto x = all.slice(1, 0, 16).contiguous(), y = all.slice(1, 1, 17).contiguous();
    Outcome outcome;
    for (int step = 0; step < 3; ++step) {
      const int64_t before = devices.report().used_bytes;
      const at::Tensor loss = engine.forward([&] { return model->loss(x, y); });
      outcome.kept_bytes = devices.report().used_bytes - before;
      engine.backward(loss);
      engine.step();
      outcome.losses.push_back(loss.item<double>());
      if (model->block_chain().must_choose()) model->block_chain().choose(engine.mesh());
    }
    for (const std::string& name : engine.parameter_names())
      outcome.values.push_back(engine.full_parameter(name));
    return outcome;
  }
};

TEST_F(VirtualRecompute, ActivationsOnHostOrDiskHaveTheSameBits) {
  const zero::testing::DiskDirectory disk;
  const std::string path = disk.path().string();
  const auto chooses = [&](ActivationTier tier) {
    return RecomputePolicy{
        .every = kRecomputeAuto, .memory_bytes = 200 << 10, .tier = tier, .path = path, .buffer_bytes = 0};
  };
  for (const int stage : {0, 3}) {
    const Outcome plain = train({}, stage), on_host = train({.tier = ActivationTier::Host}, stage),
                  on_disk = train({.tier = ActivationTier::Disk, .path = path}, stage),
                  second = train({.every = 2, .tier = ActivationTier::Host}, stage),
                  chosen = train(chooses(ActivationTier::Auto), stage);
    for (const Outcome* other : {&on_host, &on_disk, &second, &chosen}) {
      EXPECT_EQ(other->losses, plain.losses);
      for (size_t i = 0; i < plain.values.size(); ++i)
        EXPECT_TRUE(plain.values[i].equal(other->values[i])) << i;
      EXPECT_LT(other->kept_bytes, plain.kept_bytes);
    }
    EXPECT_EQ(fault_texts(), std::vector<std::string>{});
  }
}

TEST_F(VirtualRecompute, SameBitsAndLessMemory) {
  for (const int stage : {0, 3}) {
    const Outcome plain = train({}, stage), all = train({.every = 1}, stage),
                  on_host = train({.every = 1, .inputs_on_host = true}, stage),
                  half = train({.every = 2}, stage),
                  chosen = train({.every = kRecomputeAuto, .memory_bytes = 200 << 10}, stage);
    for (const Outcome* other : {&all, &on_host, &half, &chosen}) {
      EXPECT_EQ(other->losses, plain.losses);
      for (size_t i = 0; i < plain.values.size(); ++i)
        EXPECT_TRUE(plain.values[i].equal(other->values[i])) << i;
      EXPECT_LT(other->kept_bytes, plain.kept_bytes);
    }
    EXPECT_LT(all.kept_bytes, half.kept_bytes);
    // Four blocks' inputs of 2 sequences of 16 tokens.
    EXPECT_LE(on_host.kept_bytes, all.kept_bytes - 3 * 2 * 16 * 32 * 4);
    EXPECT_EQ(fault_texts(), std::vector<std::string>{});
  }
}

TEST_F(VirtualRecompute, NestedWithInputsOnTheHost) {
  const auto run = [&](bool recomputes) {
    torch::manual_seed(4);
    const at::Tensor w = torch::randn({8, 8}, on(device)).requires_grad_(),
                     x = torch::randn({4, 8}, on(device));
    const RecomputeOptions options{.inputs_on_host = true};
    const TensorFunction layer = [&](const at::Tensor& in) {
      return torch::dropout(torch::mm(in, w).tanh(), 0.3, true);
    };
    const TensorFunction two = [&](const at::Tensor& in) {
      return recomputes ? recompute(layer, recompute(layer, in, options), options) : layer(layer(in));
    };
    const at::Tensor y = recomputes ? recompute(two, x, options) : two(x);
    return torch::autograd::grad({y.sum()}, {w})[0].cpu();
  };
  EXPECT_TRUE(torch::equal(run(true), run(false)));
}

}  // namespace
}  // namespace zero::virtual_device::testing
