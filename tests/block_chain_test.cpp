// Chains of blocks: the same bits under every policy, and what an automatic one chooses.
#include "zero/block_chain.h"

#include <ATen/ops/dropout.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/utils.h>

#include <string>
#include <vector>

#include "support/expect_error.h"
#include "zero/cpu_allocator.h"
#include "zero/mesh.h"

namespace zero {
namespace {

using torch::Tensor;

constexpr int64_t kRows = 2048, kNarrow = 32;

/// Blocks of several widths inside, so that they keep different amounts.
struct Blocks {
  Blocks() {
    torch::manual_seed(5);
    for (const int64_t wide : {64, 256, 16, 128, 512, 32}) {
      in.push_back(torch::randn({wide, kNarrow}).mul_(0.1).requires_grad_());
      out.push_back(torch::randn({kNarrow, wide}).mul_(0.1).requires_grad_());
    }
  }
  Tensor run(BlockChain& chain, const Tensor& x) {
    return chain.run(x, 0, std::ssize(in), [this](const Tensor& y, int64_t i) {
      ++calls;
      return y + torch::linear(torch::dropout(torch::gelu(torch::linear(y, in[i])), 0.2, true), out[i]);
    });
  }
  /// One forward and backward; the gradients.
  std::vector<Tensor> step(BlockChain& chain) {
    torch::manual_seed(6);
    const Tensor x = torch::randn({kRows, kNarrow});
    std::vector<Tensor> leaves = in;
    leaves.insert(leaves.end(), out.begin(), out.end());
    return torch::autograd::grad({run(chain, x).square().sum()}, leaves);
  }
  std::vector<Tensor> in, out;
  int calls = 0;
};

const std::vector<Tensor>& plain_gradients() {
  static const std::vector<Tensor> gradients = [] {
    Blocks blocks;
    BlockChain chain;
    return blocks.step(chain);
  }();
  return gradients;
}

void expect_plain(const std::vector<Tensor>& gradients) {
  for (size_t i = 0; i < gradients.size(); ++i)
    EXPECT_TRUE(torch::equal(gradients[i], plain_gradients()[i])) << i;
}

TEST(BlockChain, EveryKthBlockRunsAgain) {
  for (const int64_t every : {0, 1, 2, 3, 6, 7}) {
    Blocks blocks;
    BlockChain chain({.every = every});
    expect_plain(blocks.step(chain));
    const int64_t again = every == 0 ? 0 : (6 + every - 1) / every;
    EXPECT_EQ(blocks.calls, 6 + again) << every;
    EXPECT_FALSE(chain.must_choose());
  }
}

TEST(BlockChain, AutoStaysInsideItsMemoryWithTheSameBits) {
  use_training_allocator();
  const Mesh mesh = Mesh::join({});
  const auto kept_bytes = [](Blocks& blocks, BlockChain& chain) {
    const Tensor x = torch::randn({kRows, kNarrow});
    const int64_t before = cpu_allocator_stats().used_bytes;
    const Tensor y = blocks.run(chain, x);
    return cpu_allocator_stats().used_bytes - before - static_cast<int64_t>(y.nbytes());
  };
  Blocks plain;
  BlockChain everything;
  const int64_t all = kept_bytes(plain, everything);
  int most_calls = 6;
  for (const int percent : {110, 80, 60}) {
    Blocks blocks;
    BlockChain chain({.every = kRecomputeAuto, .memory_bytes = all * percent / 100});
    EXPECT_FALSE(chain.must_choose());
    expect_plain(blocks.step(chain));
    ASSERT_TRUE(chain.must_choose());
    const std::string said = chain.choose(mesh);
    EXPECT_EQ(said.find('\n'), said.npos);
    EXPECT_NE(said.find(percent > 100 ? "6 of 6 blocks keep" : "computed again"), said.npos) << said;
    EXPECT_FALSE(chain.must_choose());
    // The states of the random generator, 5 KB a block, are not the blocks'.
    EXPECT_LE(kept_bytes(blocks, chain), all * percent / 100 + 6 * 8192) << said;
    blocks.calls = 0;
    expect_plain(blocks.step(chain));
    EXPECT_GE(blocks.calls, most_calls);
    most_calls = blocks.calls;
  }
  EXPECT_GT(most_calls, 6);
}

TEST(BlockChain, MemoryThatNothingFitsIsNamed) {
  Blocks blocks;
  BlockChain chain({.every = kRecomputeAuto, .memory_bytes = 1000});
  blocks.step(chain);
  EXPECT_ERROR(chain.choose(Mesh::join({})), Config, "MiB at least, whatever is computed again");
}

TEST(BlockChain, MisuseIsNamed) {
  EXPECT_ERROR(BlockChain({.every = -2}), Config, "got -2");
  EXPECT_ERROR(BlockChain({.every = kRecomputeAuto}), Config, "auto needs the bytes");
  BlockChain chain({.every = 1});
  EXPECT_ERROR(chain.choose(Mesh::join({})), Usage, "nothing to choose from");
}

}  // namespace
}  // namespace zero
