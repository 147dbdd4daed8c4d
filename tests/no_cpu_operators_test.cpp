// A library that was built without operators of its own: everything is LibTorch's, to the bit.
#include <ATen/ops/gelu.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "support/ranks.h"
#include "zero/cpu_operators.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;

TEST(NoCpuOperators, AScopeAndAnEngineAreLibTorchs) {
  EXPECT_FALSE(zero::CpuOperators::exist());
  run_ranks(1, [](const zero::Mesh& mesh) {
    const at::Tensor x = at::rand({4096}), wanted = at::gelu(x, "tanh");
    {
      const zero::CpuOperators scope;
      EXPECT_TRUE(at::equal(at::gelu(x, "tanh"), wanted));
    }
    torch::nn::Linear net(4, 4);
    zero::EngineOptions options{.stage = 1};
    options.cpu_operators = true;
    zero::Engine engine(*net, zero::SGD{.lr = 1}, options, mesh);
    const at::Tensor loss = engine.forward([&] {
      EXPECT_TRUE(at::equal(at::gelu(x, "tanh"), wanted));
      return net(x.view({1024, 4})).sum();
    });
    engine.backward(loss);
    EXPECT_TRUE(engine.step().stepped);
  });
}

}  // namespace
