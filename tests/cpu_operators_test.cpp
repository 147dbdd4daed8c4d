// Operators that the engine computes itself: when, and with which values.
#include "operators/cpu_operators.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "operators/gelu.h"
#include "operators/product.h"
#include "support/ranks.h"
#include "zero/cpu_operators.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using at::Tensor;
using torch::jit::Stack;
namespace detail = zero::detail;

c10::OperatorHandle op(const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); }

Tensor bf16(at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); }

double relative_error(const Tensor& got, const Tensor& wanted) {
  const Tensor exact = wanted.to(at::kDouble);
  return ((got.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

// A vocabulary of GPT-2's kind: odd.
constexpr int64_t kRows = 128, kOdd = 8195, kFeatures = 64;

TEST(CpuOperators, Products) {
  at::manual_seed(1);
  const bool ours = detail::has_tiled_products() || detail::has_widened_products();
  const Tensor x = bf16({kRows, kFeatures}), weight = bf16({kOdd, kFeatures}), bias = bf16({kOdd});
  const Tensor exact = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t());
  Stack product{x, weight.t()};
  EXPECT_EQ(detail::run_cpu_operator(op("aten::mm"), product), ours);
  EXPECT_EQ(product.size(), ours ? 1U : 2U);
  if (ours) {
    EXPECT_LT(relative_error(product[0].toTensor(), exact), 3e-3);
  }
  // What is wrong is for at::mm to refuse; fp32 is LibTorch's.
  for (Stack stack : {Stack{x, weight}, Stack{x.to(at::kFloat), weight.t().to(at::kFloat)}}) {
    EXPECT_FALSE(detail::run_cpu_operator(op("aten::mm"), stack));
    EXPECT_EQ(stack.size(), 2U);
  }
  Stack sum{bias, x, weight.t(), 1, 1};
  EXPECT_EQ(detail::run_cpu_operator(op("aten::addmm"), sum), ours);
  if (ours) {
    ASSERT_EQ(sum.size(), 1U);
    EXPECT_LT(relative_error(sum[0].toTensor(), exact + bias.to(at::kDouble)), 3e-3);
  }
  const Tensor many = bf16({3, 40, 50}), others = bf16({3, 50, 60});
  Stack pairs{many, others};
  EXPECT_EQ(detail::run_cpu_operator(op("aten::bmm"), pairs), detail::has_widened_products());
  for (Stack stack : {Stack{bias, x, weight.t(), 2, 1}, Stack{bias, x, weight.t(), 1, 0.5}}) {
    EXPECT_FALSE(detail::run_cpu_operator(op("aten::addmm"), stack));
    EXPECT_EQ(stack.size(), 5U);
  }
}

// A user who lets LibTorch multiply fp32 with less precision gets LibTorch's operators of fp32.
TEST(CpuOperators, LibTorchsPrecisionSettingCounts) {
  at::manual_seed(7);
  const Tensor q = at::randn({1, 2, 32, 16}), half = q.to(at::kBFloat16);
  const auto is_ours = [](const Tensor& x) {
    Stack stack{x, x, x, 0.0, true, c10::IValue(), c10::IValue()};
    const auto attention = op("aten::_scaled_dot_product_flash_attention_for_cpu");
    return detail::run_cpu_operator(attention, stack);
  };
  EXPECT_TRUE(is_ours(q));
  at::globalContext().setFloat32MatmulPrecision("medium");
  EXPECT_FALSE(is_ours(q));
  EXPECT_TRUE(is_ours(half));
  at::globalContext().setFloat32MatmulPrecision("highest");
  EXPECT_TRUE(is_ours(q));
}

// What is LibTorch's stays LibTorch's, to the bit.
TEST(CpuOperators, LogSoftmaxOfLargeLogits) {
  for (const float logit : {1e4F, 1e5F, 1e7F, 1e8F}) {
    const Tensor x = at::full({1, 2}, logit), wanted = at::log_softmax(x, -1);
    EXPECT_NEAR(wanted[0][0].item<float>(), -std::log(2.0F), 1e-6F);
    const zero::CpuOperators scope;
    EXPECT_TRUE(at::equal(at::log_softmax(x, -1), wanted)) << logit;
  }
}

TEST(CpuOperators, SumsOfManyRows) {
  const zero::CpuOperators scope;
  const Tensor sums = at::ones({1 << 25, 2}, at::kBFloat16).sum(0);
  EXPECT_EQ(sums[0].item<float>(), 1 << 25);
  EXPECT_EQ(sums[1].item<float>(), 1 << 25);
}

TEST(CpuOperators, SparseMatrices) {
  at::manual_seed(6);
  const Tensor dense = at::randn({64, 64}) * (at::rand({64, 64}) < 0.1), x = at::randn({64, 64}),
               wanted = at::mm(dense, x);
  const zero::CpuOperators scope;
  for (const Tensor& sparse : {dense.to_sparse(), dense.to_sparse_csr()}) {
    EXPECT_TRUE(at::allclose(at::mm(sparse, x), wanted, 1e-5, 1e-5)) << sparse.layout();
    EXPECT_TRUE(at::allclose(at::mm(sparse, x.t()), at::mm(dense, x.t()), 1e-5, 1e-5)) << sparse.layout();
    EXPECT_TRUE(at::allclose(at::addmm(x, sparse, x), x + wanted, 1e-5, 1e-5)) << sparse.layout();
  }
}

TEST(CpuOperators, Gelu) {
  at::manual_seed(2);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor x = at::randn({31, 65}).to(dtype), upstream = at::randn_like(x);
    Stack forward{x, "tanh"};
    ASSERT_TRUE(detail::run_cpu_operator(op("aten::gelu"), forward));
    ASSERT_EQ(forward.size(), 1U);
    const double tolerance = dtype == at::kFloat ? 1e-6 : 3e-3;
    EXPECT_LT(relative_error(forward[0].toTensor(), at::gelu(x.to(at::kDouble), "tanh")), tolerance);
    Stack backward{upstream, x, "tanh"};
    ASSERT_TRUE(detail::run_cpu_operator(op("aten::gelu_backward"), backward));
    ASSERT_EQ(backward.size(), 1U);
    const Tensor wanted = at::gelu_backward(upstream.to(at::kDouble), x.to(at::kDouble), "tanh");
    EXPECT_LT(relative_error(backward[0].toTensor(), wanted), tolerance);
  }
  const Tensor x = at::randn({6, 5});
  for (Stack stack : {Stack{x, "none"}, Stack{x.t(), "tanh"}, Stack{x.to(at::kDouble), "tanh"}})
    EXPECT_FALSE(detail::run_cpu_operator(op("aten::gelu"), stack));
  for (Stack stack :
       {Stack{x.to(at::kBFloat16), x, "tanh"}, Stack{x.narrow(0, 0, 2), x, "tanh"}, Stack{x, x, "none"}})
    EXPECT_FALSE(detail::run_cpu_operator(op("aten::gelu_backward"), stack));
}

TEST(CpuOperators, Attention) {
  at::manual_seed(4);
  const char *forward = "aten::_scaled_dot_product_flash_attention_for_cpu",
             *backward = "aten::_scaled_dot_product_flash_attention_for_cpu_backward";
  const Tensor q = at::randn({2, 3, 40, 16}), k = at::randn_like(q), v = at::randn_like(q),
               upstream = at::randn_like(q);
  for (const c10::IValue& scale : {c10::IValue(), c10::IValue(0.1)}) {
    const std::optional<double> given = scale.toOptional<double>();
    Stack stack{q, k, v, 0.0, true, c10::IValue(), scale};
    ASSERT_TRUE(detail::run_cpu_operator(op(forward), stack));
    ASSERT_EQ(stack.size(), 2U);
    const auto [out, log_sums] =
        at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true, {}, given);
    EXPECT_LT(relative_error(stack[0].toTensor(), out), 1e-6);
    EXPECT_EQ(stack[1].toTensor().sizes(), log_sums.sizes());
    EXPECT_LT(relative_error(stack[1].toTensor(), log_sums), 1e-6);
    // Either backward takes what either forward gave.
    Stack gradients{upstream, q, k, v, out, log_sums, 0.0, true, Tensor(), scale};
    ASSERT_TRUE(detail::run_cpu_operator(op(backward), gradients));
    ASSERT_EQ(gradients.size(), 3U);
    const auto [of_q, of_k, of_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        upstream, q, k, v, stack[0].toTensor(), stack[1].toTensor(), 0.0, true, {}, given);
    EXPECT_LT(relative_error(gradients[0].toTensor(), of_q), 2e-6);
    EXPECT_LT(relative_error(gradients[1].toTensor(), of_k), 2e-6);
    EXPECT_LT(relative_error(gradients[2].toTensor(), of_v), 2e-6);
  }
  const Tensor mask = at::zeros({40, 40});
  for (Stack stack : {Stack{q, k, v, 0.5, true, c10::IValue(), c10::IValue()},
                      Stack{q, k, v, 0.0, false, mask, c10::IValue()}}) {
    EXPECT_FALSE(detail::run_cpu_operator(op(forward), stack));
    EXPECT_EQ(stack.size(), 7U);
  }
}

struct Net : torch::nn::Module {
  Net()
      : in(register_module("in", torch::nn::Linear(kFeatures, kFeatures))),
        head(register_module("head",
                             torch::nn::Linear(torch::nn::LinearOptions(kFeatures, kOdd).bias(false)))) {}
  torch::nn::Linear in, head;
};

TEST(CpuOperators, AScopeWithoutAnEngine) {
  EXPECT_TRUE(zero::CpuOperators::exist());
  at::manual_seed(5);
  const Tensor x = at::randn({4096}), input = bf16({kRows, kFeatures}), weight = bf16({kOdd, kFeatures});
  const Tensor ours = detail::fast_gelu(x);
  ASSERT_FALSE(at::equal(ours, at::gelu(x, "tanh"))) << "the last bits tell them apart";
  Tensor out = at::empty({kRows, 8200}, at::kBFloat16).narrow(1, 0, kOdd);
  {
    const zero::CpuOperators outer;
    { const zero::CpuOperators inner; }
    EXPECT_TRUE(at::equal(at::gelu(x, "tanh"), ours));
    at::mm_out(out, input, weight.t());
    const Tensor parameter = x.clone().requires_grad_();
    at::gelu(parameter, "tanh").sum().backward();
    EXPECT_TRUE(at::equal(parameter.grad(), detail::fast_gelu_backward(at::ones_like(x), x)));
  }
  EXPECT_LT(relative_error(out, at::mm(input.to(at::kDouble), weight.to(at::kDouble).t())), 3e-3);
  EXPECT_FALSE(at::equal(at::gelu(x, "tanh"), ours));
}

// In the engine's forward and backward, unless switched off; outside of them never.
TEST(CpuOperators, RunInTheEngineWhereTheyAreOn) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    std::vector<Tensor> gradients;
    const Tensor x = at::randn({4096}), input = bf16({kRows, kFeatures});
    ASSERT_FALSE(at::equal(detail::fast_gelu(x), at::gelu(x, "tanh"))) << "the last bits tell them apart";
    for (const bool fast : {true, false}) {
      torch::manual_seed(3);
      Net net;
      zero::EngineOptions options{.stage = 3, .dtype = at::kBFloat16};
      options.cpu_operators = fast;
      zero::Engine engine(net, zero::SGD{.lr = 1}, options, mesh);
      Tensor seen;
      const Tensor loss = engine.forward([&] {
        seen = at::gelu(x, "tanh");
        return net.head(at::gelu(net.in(input), "tanh")).to(at::kFloat).square().mean();
      });
      EXPECT_TRUE(at::equal(seen, fast ? detail::fast_gelu(x) : at::gelu(x, "tanh"))) << fast;
      const Tensor before = engine.full_parameter("in.weight");
      engine.backward(loss);
      engine.step();
      gradients.push_back(before - engine.full_parameter("in.weight"));
    }
    EXPECT_LT(relative_error(gradients[0], gradients[1]), 2e-2);
  });
}

}  // namespace
