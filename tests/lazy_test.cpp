// lazily(): shapes without memory, and the bits of eager construction.
#include "zero/lazy.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/utils.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "lazy/lazy_draw.h"
#include "zero/error.h"

namespace {
using torch::Tensor;
namespace nn = torch::nn;

nn::Sequential zoo() {
  return nn::Sequential(nn::Embedding(nn::EmbeddingOptions(100, 64).padding_idx(3)), nn::Linear(64, 256),
                        nn::LayerNorm(nn::LayerNormOptions({256})), nn::Conv1d(256, 8, 3), nn::BatchNorm1d(8),
                        nn::LSTM(nn::LSTMOptions(8, 16).num_layers(2).bidirectional(true)),
                        nn::Bilinear(3, 4, 5), nn::PReLU(), nn::GroupNorm(2, 8), nn::GRU(4, 4),
                        nn::ConvTranspose2d(3, 5, 2));
}

void expect_same(nn::Module& eager, nn::Module& lazy) {
  auto a = eager.named_parameters(), b = lazy.named_parameters();
  ASSERT_EQ(a.size(), b.size());
  for (const auto& item : a) EXPECT_TRUE(torch::equal(item.value(), b[item.key()])) << item.key();
  auto c = eager.named_buffers(), d = lazy.named_buffers();
  for (const auto& item : c) EXPECT_TRUE(torch::equal(item.value(), d[item.key()])) << item.key();
}

TEST(Lazy, EqualsEagerBitForBit) {
  torch::manual_seed(3);
  auto eager = zoo();
  Tensor after_eager = torch::randn({4});
  torch::manual_seed(3);
  auto lazy = zero::lazily([] { return zoo(); });
  for (const auto& p : lazy->parameters()) {
    EXPECT_TRUE(zero::is_lazy(p));
    EXPECT_TRUE(p.is_cpu());
    EXPECT_TRUE(p.requires_grad());
  }
  zero::materialize(*lazy);
  for (const auto& p : lazy->parameters()) EXPECT_FALSE(zero::is_lazy(p));
  expect_same(*eager, *lazy);
  EXPECT_TRUE(torch::equal(after_eager, torch::randn({4})))
      << "the generator is where eager construction leaves it";
}

TEST(Lazy, ReadingBeforeMaterialisationSaysWhat) {
  auto lazy = zero::lazily([] { return nn::Linear(3, 3); });
  try {
    (void)(lazy->weight + 1);
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("zero::lazily()"), std::string::npos) << error.what();
  }
}

struct Scaled : nn::Module {
  nn::Linear first{nullptr}, second{nullptr};
  Tensor table;
  Scaled() {
    first = register_module("first", nn::Linear(16, 16));
    second = register_module("second", nn::Linear(16, 16));
    table = register_buffer("table", torch::arange(8).to(torch::kFloat).mul(2).add_(torch::ones({8})));
    torch::NoGradGuard guard;
    for (auto& p : parameters()) p.normal_(0, 0.02);
    first->weight.mul_(0.5);                  // reads what it writes
    first->weight[2].fill_(7);                // through a view
    second->weight.copy_(first->weight.t());  // from another parameter
    nn::init::orthogonal_(first->weight);     // functional operators on the way
    nn::init::sparse_(second->weight, 0.3);
    auto rates = torch::linspace(0, 1, 5);
    if (rates[4].item<float>() > 0.5)
      second->bias.add_(rates[2].item<float>());  // deterministic values may be read
  }
};

TEST(Lazy, InitialisersThatReadViewsAndOtherParameters) {
  torch::manual_seed(11);
  Scaled eager;
  torch::manual_seed(11);
  auto lazy = zero::lazily([] { return std::make_shared<Scaled>(); });
  zero::materialize(*lazy);
  expect_same(eager, *lazy);
}

TEST(Lazy, ReplayHandsOverInOrderAndFreesAtOnce) {
  torch::manual_seed(5);
  auto eager = zoo();
  torch::manual_seed(5);
  auto lazy = zero::lazily([] { return zoo(); });
  auto parameters = lazy->parameters();
  auto expected = eager->parameters();
  std::vector<int> seen(parameters.size());
  zero::replay(parameters, [&](size_t i, const Tensor& value) {
    seen[i]++;
    EXPECT_TRUE(torch::equal(value, expected[i])) << i;
  });
  for (int count : seen) EXPECT_EQ(count, 1);
  EXPECT_TRUE(zero::is_lazy(parameters[0])) << "replay leaves the module as it is";
}

TEST(Lazy, SkippedNumbersAreThoseThatWouldHaveBeenDrawn) {
  for (const int64_t before : {0, 1, 623, 624, 700}) {
    for (const int64_t skipped : {0, 1, 2, 16, 622, 623, 624, 625, 1248, 100003}) {
      at::mt19937 drawn(7);
      for (int64_t i = 0; i < before; ++i) drawn();
      at::mt19937 skipping = drawn;
      for (int64_t i = 0; i < skipped; ++i) drawn();
      zero::detail::skip_numbers(skipping, skipped);
      EXPECT_TRUE(skipping.is_valid());
      for (int i = 0; i < 1300; ++i) ASSERT_EQ(skipping(), drawn()) << before << " + " << skipped;
    }
  }
}

// Of several lengths around the blocks that normal_ draws, and one of several threads' pieces.
std::vector<Tensor> drawn_tensors() {
  std::vector<Tensor> result;
  for (const int64_t numel : {1, 15, 16, 17, 31, 32, 33, 1000, 1 << 20, (1 << 20) + 5}) {
    result.push_back(torch::empty({numel}).normal_(0.5, 2));
    result.push_back(torch::empty({numel}).uniform_(-1, 3));
    torch::empty({numel}).normal_();  // nobody needs it
    result.push_back(torch::empty({numel, 2}).t().normal_());
    result.push_back(torch::empty({numel}).normal_().mul_(3));
  }
  return result;
}

TEST(Lazy, PartsHaveTheValuesOfTheWhole) {
  torch::manual_seed(21);
  const std::vector<Tensor> expected = drawn_tensors();
  const Tensor after = torch::randn({40});
  const int threads = at::get_num_threads();
  for (const int count : {1, 3}) {
    at::set_num_threads(count);
    for (const auto& [from, to] : {std::pair{0.0, 1.0}, {0.0, 0.5}, {0.5, 1.0}, {0.3, 0.31}, {0.7, 0.7}}) {
      torch::manual_seed(21);
      const std::vector<Tensor> lazy = zero::lazily(drawn_tensors);
      std::vector<zero::ElementRange> parts;
      for (const Tensor& tensor : lazy) {
        const auto numel = static_cast<double>(tensor.numel());
        parts.push_back({static_cast<int64_t>(from * numel), static_cast<int64_t>(to * numel)});
      }
      std::vector<int> seen(lazy.size());
      zero::replay(lazy, parts, [&](size_t i, const Tensor& value) {
        seen[i]++;
        const auto part = [&](const Tensor& whole) {
          return whole.contiguous().view({-1}).slice(0, parts[i].begin, parts[i].end);
        };
        EXPECT_TRUE(torch::equal(part(value), part(expected[i])))
            << i << ", from " << from << " to " << to << ", threads " << count;
      });
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<long>(lazy.size()));
      EXPECT_TRUE(torch::equal(torch::randn({40}), after)) << "the generator ends where eager drawing does";
    }
  }
  at::set_num_threads(threads);
}

TEST(Lazy, PartsOutsideTheTensorAreRefused) {
  const std::vector<Tensor> lazy{zero::lazily([] { return torch::randn({8}); })};
  const auto ignore = [](size_t, const Tensor&) {};
  for (const zero::ElementRange part : {zero::ElementRange{-1, 2}, {3, 2}, {0, 9}})
    EXPECT_THROW(zero::replay(lazy, std::vector{part}, ignore), zero::Error);
  EXPECT_THROW(zero::replay(lazy, std::vector<zero::ElementRange>{}, ignore), zero::Error);
}

TEST(Lazy, GeneratorStaysWhereLaterDrawsLeftIt) {
  torch::manual_seed(5);
  auto lazy = zero::lazily([] { return nn::Linear(4, 4); });
  auto drawn = torch::randn({3});
  auto state = at::detail::getDefaultCPUGenerator().get_state();
  zero::materialize(*lazy);
  EXPECT_TRUE(torch::equal(state, at::detail::getDefaultCPUGenerator().get_state()));
}

TEST(Lazy, RefusesWhatItCannotKeepExact) {
  auto kind = [](auto fn) {
    try {
      zero::lazily(fn);
    } catch (const zero::Error& error) {
      return error.kind();
    }
    return zero::ErrorKind::Internal;
  };
  EXPECT_EQ(kind([] { return torch::randn({1}).item<float>(); }), zero::ErrorKind::Unsupported);
  auto real = torch::ones({3});
  EXPECT_EQ(kind([&] { return real.normal_(); }), zero::ErrorKind::Unsupported);
}

TEST(Lazy, NestedScopesShareOneOrder) {
  torch::manual_seed(2);
  auto a = nn::Linear(3, 3), b = nn::Linear(3, 3);
  torch::manual_seed(2);
  nn::Linear c{nullptr}, d{nullptr};
  zero::lazily([&] {
    c = zero::lazily([] { return nn::Linear(3, 3); });
    d = nn::Linear(3, 3);
    return 0;
  });
  std::vector<Tensor> tensors{d->weight, c->weight};
  zero::replay(tensors, [&](size_t i, const Tensor& value) {
    EXPECT_TRUE(torch::equal(value, i == 0 ? b->weight : a->weight));
  });
}
}  // namespace
