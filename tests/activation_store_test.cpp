// Activations in a store: the same bits as in memory, once for each storage, in bounded memory.
#include "zero/activation_store.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <optional>
#include <string>
#include <vector>

#include "support/disk_directory.h"
#include "support/expect_error.h"
#include "zero/block_chain.h"
#include "zero/cpu_allocator.h"
#include "zero/mesh.h"
#include "zero/recompute.h"

namespace zero {
namespace {

using testing::DiskDirectory;
using torch::Tensor;

constexpr int64_t kTokens = 512, kNetWidth = 48, kNetBlocks = 4;

ActivationStoreOptions small_options(const DiskDirectory& directory) {
  return {.tier = Tier::Disk,
          .path = directory.path().string(),
          .buffer_bytes = 256 << 10,
          .least_bytes = 1024,
          .block_bytes = 64 << 10};
}

/// Blocks whose operators save views, transposed and expanded tensors, masks and scalars.
struct SavingNet {
  SavingNet() {
    torch::manual_seed(5);
    for (int64_t i = 0; i < kNetBlocks; ++i) {
      weights.push_back(torch::randn({3 * kNetWidth, kNetWidth}).mul_(0.1).requires_grad_());
      weights.push_back(torch::randn({kNetWidth, kNetWidth}).mul_(0.1).requires_grad_());
    }
    bias = torch::randn({kNetWidth}).requires_grad_();
    frozen = torch::randn({kNetWidth, kNetWidth}).mul_(0.1);
  }
  Tensor block(const Tensor& x, int64_t i) const {
    const std::vector<Tensor> parts = torch::linear(x, weights[2 * i]).chunk(3, 1);
    const Tensor mixed = torch::matmul(parts[0].t(), parts[1]).softmax(-1);
    const Tensor y = torch::matmul(parts[2], mixed) * bias.expand({kTokens, kNetWidth});
    const Tensor halves = torch::gelu(torch::linear(y, weights[2 * i + 1])).slice(1, 0, kNetWidth, 1);
    return x + torch::dropout(torch::linear(halves, frozen), 0.2, true) * halves.abs().mean();
  }
  Tensor loss(unsigned seed, const ActivationStore* store, bool recomputes = false) const {
    torch::manual_seed(seed);
    Tensor x = torch::randn({kTokens, kNetWidth});
    std::optional<ActivationStore::Scope> scope;
    if (store != nullptr) scope.emplace(*store);
    for (int64_t i = 0; i < kNetBlocks; ++i) {
      const auto run = [this, i](const Tensor& in) { return block(in, i); };
      x = recomputes && i % 2 == 1 ? recompute(run, x) : run(x);
    }
    return x.square().sum();
  }
  std::vector<Tensor> leaves() const {
    std::vector<Tensor> all = weights;
    all.push_back(bias);
    return all;
  }
  std::vector<Tensor> gradients(const Tensor& loss, bool keep_graph = false) const {
    return torch::autograd::grad({loss}, leaves(), {}, keep_graph);
  }
  std::vector<Tensor> weights;
  Tensor bias, frozen;
};

void expect_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

TEST(ActivationStore, BackwardHasTheSameBitsAndLeavesNothing) {
  const DiskDirectory directory;
  const SavingNet net;
  const ActivationStore store(small_options(directory));
  for (const bool recomputes : {false, true}) {
    for (int step = 0; step < 3; ++step)
      expect_bits(net.gradients(net.loss(step, &store, recomputes)), net.gradients(net.loss(step, nullptr)));
    EXPECT_EQ(store.stats().stored_bytes, 0);
  }
  EXPECT_GT(store.stats().read_bytes, 0);
  EXPECT_NE(store.stats().transport.find("system's cache"), std::string::npos);
}

TEST(ActivationStore, MicroBatchesMayBeInFlightInAnyOrder) {
  const DiskDirectory directory;
  const SavingNet net;
  const ActivationStore store(small_options(directory));
  std::vector<std::vector<Tensor>> plain;
  for (unsigned seed = 0; seed < 3; ++seed) plain.push_back(net.gradients(net.loss(seed, nullptr)));
  for (const std::vector<unsigned>& order : {std::vector<unsigned>{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}) {
    std::vector<Tensor> losses;
    for (unsigned seed = 0; seed < 3; ++seed) losses.push_back(net.loss(seed, &store));
    for (const unsigned seed : order)
      expect_bits(net.gradients(std::exchange(losses[seed], {})), plain[seed]);
  }
  EXPECT_EQ(store.stats().stored_bytes, 0);
}

TEST(ActivationStore, GraphsServeSeveralBackwards) {
  const DiskDirectory directory;
  const SavingNet net;
  const ActivationStore store(small_options(directory));
  const std::vector<Tensor> plain = net.gradients(net.loss(7, nullptr));
  const Tensor loss = net.loss(7, &store);
  for (const bool keep_graph : {true, true, false}) expect_bits(net.gradients(loss, keep_graph), plain);
}

TEST(ActivationStore, BackwardMayBeDifferentiated) {
  const DiskDirectory directory;
  const ActivationStore store(small_options(directory));
  const auto second = [](const ActivationStore* with) {
    torch::manual_seed(3);
    const Tensor x = torch::randn({64, 64}).requires_grad_();
    std::optional<ActivationStore::Scope> scope;
    if (with != nullptr) scope.emplace(*with);
    const Tensor y = (x.tanh() * 2).tanh().sum();
    const Tensor first = torch::autograd::grad({y}, {x}, {}, true, true)[0];
    return torch::autograd::grad({first.square().sum()}, {x});
  };
  expect_bits(second(&store), second(nullptr));
}

TEST(ActivationStore, AStorageGoesOnce) {
  const DiskDirectory directory;
  const ActivationStore store(small_options(directory));
  const Tensor x = torch::randn({128, 128}).requires_grad_(), w = torch::randn({128, 128});
  Tensor loss;
  {
    const ActivationStore::Scope scope(store);
    const Tensor y = x * w;  // saves w, and no parameter
    loss = (y * y + y.t() * y.t() + y.slice(0, 0, 64).square().sum()).sum();
  }
  const int64_t bytes = 128 * 128 * 4;
  EXPECT_EQ(store.stats().stored_bytes, 2 * bytes);
  loss.backward();
  EXPECT_EQ(store.stats().stored_bytes, 0);
}

TEST(ActivationStore, WhatIsWrittenLaterIsAnotherValue) {
  const DiskDirectory directory;
  const ActivationStore store(small_options(directory));
  const Tensor x = torch::randn({128, 128}).requires_grad_();
  Tensor y, loss;
  {
    const ActivationStore::Scope scope(store);
    y = x * 2;
    const Tensor first = y.square().sum();
    y.mul_(3);
    loss = first + y.square().sum();
  }
  const Tensor gradient = torch::autograd::grad({loss}, {x})[0];
  EXPECT_TRUE(torch::allclose(gradient, x * (8 + 72)));
}

TEST(ActivationStore, ParametersStayAndTheirWritesAreNamed) {
  const DiskDirectory directory;
  const ActivationStore store(small_options(directory));
  Tensor w = torch::randn({128, 128}).requires_grad_(), loss;
  {
    const ActivationStore::Scope scope(store);
    loss = (w.t() * w).sum();
  }
  EXPECT_EQ(store.stats().written_bytes, 0);
  {
    const torch::NoGradGuard no_grad;
    w.add_(1);
  }
  EXPECT_ERROR(loss.backward(), Usage, "was written in place between forward and backward");
}

TEST(ActivationStore, MemoryStaysBounded) {
  use_training_allocator();
  const DiskDirectory directory;
  ActivationStoreOptions options = small_options(directory);
  const ActivationStore store(options);
  torch::manual_seed(1);
  const Tensor w = torch::randn({1024, 64}).requires_grad_();  // 256 KiB
  const int64_t before = cpu_allocator_stats().used_bytes;
  Tensor x = w * 1;
  {
    const ActivationStore::Scope scope(store);
    for (int i = 0; i < 40; ++i) x = x.tanh();
  }
  EXPECT_GE(store.stats().stored_bytes, 40 * (256 << 10));
  EXPECT_LE(cpu_allocator_stats().used_bytes - before, 4 * (300 << 10));
  x.sum().backward();
  EXPECT_LE(store.stats().buffer_bytes, 600 << 10);
}

TEST(ActivationStore, LostGraphsGiveTheirRoomBack) {
  const DiskDirectory directory;
  const SavingNet net;
  const ActivationStore store(small_options(directory));
  net.loss(1, &store);
  EXPECT_EQ(store.stats().stored_bytes, 0);
  const int64_t peak = store.stats().peak_stored_bytes;
  expect_bits(net.gradients(net.loss(2, &store)), net.gradients(net.loss(2, nullptr)));
  EXPECT_EQ(store.stats().peak_stored_bytes, peak);
}

TEST(ActivationStore, OutlivesItself) {
  const DiskDirectory directory;
  const SavingNet net;
  std::optional<ActivationStore> store(small_options(directory));
  const Tensor loss = net.loss(4, &*store);
  store.reset();
  expect_bits(net.gradients(loss), net.gradients(net.loss(4, nullptr)));
}

TEST(ActivationStore, MisuseIsNamed) {
  const DiskDirectory directory;
  ActivationStoreOptions options = small_options(directory);
  options.path = "/nowhere";
  options.key = "activation_checkpointing.offload_path";
  EXPECT_ERROR(ActivationStore{options}, Config, "activation_checkpointing.offload_path");
  options.path = "";
  EXPECT_ERROR(ActivationStore{options}, Config, "no directory");
  EXPECT_ERROR(ActivationStore({.tier = Tier::Device}), Usage, "without a store");
}

TEST(BlockChainOnDisk, PoliciesHaveTheSameBits) {
  const DiskDirectory directory;
  const Mesh mesh = Mesh::join({});
  const SavingNet net;
  const auto step = [&](BlockChain& chain) {
    torch::manual_seed(6);
    const Tensor x = torch::randn({kTokens, kNetWidth});
    const auto block = [&](const Tensor& in, int64_t i) { return net.block(in, i); };
    return net.gradients(chain.run(x, 0, kNetBlocks, block).square().sum());
  };
  BlockChain plain;
  const std::vector<Tensor> expected = step(plain);
  for (const int64_t every : {int64_t{0}, int64_t{1}, int64_t{2}, kRecomputeAuto}) {
    for (const int64_t memory : {int64_t{1} << 30, int64_t{1} << 20}) {
      const bool is_auto = every == kRecomputeAuto;
      BlockChain chain({.every = every,
                        .memory_bytes = is_auto ? memory : -1,
                        .tier = ActivationTier::Disk,
                        .path = directory.path().string(),
                        .buffer_bytes = 128 << 10});
      expect_bits(step(chain), expected);
      if (is_auto) {
        ASSERT_TRUE(chain.must_choose());
        const std::string said = chain.choose(mesh);
        EXPECT_EQ(said.find('\n'), said.npos);
        if (memory > (1 << 20)) {
          EXPECT_NE(said.find("4 of 4 blocks keep"), said.npos) << said;
        }
      } else {
        EXPECT_GT(chain.stored(Tier::Disk).written_bytes, 0);
      }
      expect_bits(step(chain), expected);
      EXPECT_EQ(chain.stored(Tier::Disk).stored_bytes, 0);
    }
  }
}

}  // namespace
}  // namespace zero
