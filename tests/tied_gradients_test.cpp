// A weight that is an embedding and something else: its gradient's bits, and which operators make it.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/embedding.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/ranks.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using torch::Tensor;
namespace F = torch::nn::functional;

constexpr int64_t kVocabulary = 37, kWidth = 12;

struct OneWeight : torch::nn::Module {
  explicit OneWeight(at::ScalarType dtype)
      : weight(register_parameter("weight", torch::randn({kVocabulary, kWidth}).to(dtype))) {}
  Tensor weight;
};

using Loss = std::function<Tensor(const Tensor& weight, const Tensor& tokens)>;

// What autograd did with matrices of the weight's shape.
struct Matrices {
  int scattered = 0;  // dense gradients of embeddings
  int sums = 0;       // in memory of their own
  int sums_in_place = 0;
  int rows_in_place = 0;
};

class WatchMatrices {
 public:
  WatchMatrices() {
    current() = {};
    handle_ =
        at::addGlobalCallback(at::RecordFunctionCallback(&WatchMatrices::on_operator).needsInputs(true));
  }
  ~WatchMatrices() { at::removeCallback(handle_); }
  WatchMatrices(const WatchMatrices&) = delete;
  WatchMatrices& operator=(const WatchMatrices&) = delete;
  static Matrices& current() {
    static Matrices matrices;
    return matrices;
  }

 private:
  static bool is_matrix(const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() &&
           value.toTensor().sizes() == at::IntArrayRef({kVocabulary, kWidth});
  }
  static std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& call) {
    const std::string name = call.name();
    const auto inputs = call.inputs();
    if (name == "aten::embedding_dense_backward" && inputs[2].toInt() == kVocabulary) current().scattered++;
    if (name == "aten::add" && is_matrix(inputs[0]) && is_matrix(inputs[1])) current().sums++;
    if (name == "aten::add_" && is_matrix(inputs[0])) current().sums_in_place++;
    if (name == "aten::index_add_" && is_matrix(inputs[0])) current().rows_in_place++;
    return nullptr;
  }
  at::CallbackHandle handle_;
};

struct Found {
  Tensor gradient;
  Matrices matrices;
};

Found gradient_of(const zero::Mesh& mesh, at::ScalarType dtype, bool row_gradients, const Loss& loss) {
  torch::manual_seed(3);
  OneWeight model(dtype);
  zero::EngineOptions options{.stage = 3};
  options.row_gradients = row_gradients;
  zero::Engine engine(model, zero::AdamW{}, options, mesh);
  // Many tokens several times: the order of additions shows.
  const Tensor tokens = torch::randint(0, 9, {4, 16}, torch::kLong);
  const Tensor value = engine.forward([&] { return loss(model.weight, tokens); });
  WatchMatrices watch;
  engine.backward(value);
  return {engine.full_gradient("weight"), WatchMatrices::current()};
}

void expect_same_gradient(const Loss& loss, const Matrices& wanted) {
  run_ranks(1, [&](const zero::Mesh& mesh) {
    for (at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const Found rows = gradient_of(mesh, dtype, true, loss), dense = gradient_of(mesh, dtype, false, loss);
      EXPECT_TRUE(torch::equal(rows.gradient, dense.gradient)) << c10::toString(dtype);
      EXPECT_GT(rows.gradient.abs().max().item<double>(), 0);
      EXPECT_EQ(rows.matrices.scattered, wanted.scattered) << c10::toString(dtype);
      EXPECT_EQ(rows.matrices.sums, wanted.sums) << c10::toString(dtype);
      EXPECT_EQ(rows.matrices.sums_in_place, wanted.sums_in_place) << c10::toString(dtype);
      EXPECT_EQ(rows.matrices.rows_in_place, wanted.rows_in_place) << c10::toString(dtype);
      EXPECT_GT(dense.matrices.sums + dense.matrices.sums_in_place, 0) << "nothing to compare with";
    }
  });
}

Tensor as_loss(const Tensor& logits) { return logits.to(at::kFloat).square().mean(); }

TEST(TiedGradients, RowsAreAddedToTheHeadsGradientInPlace) {
  expect_same_gradient(
      [](const Tensor& weight, const Tensor& tokens) {
        return as_loss(F::linear(F::embedding(tokens, weight), weight));
      },
      {.scattered = 0, .sums = 0, .sums_in_place = 0, .rows_in_place = 1});
}

TEST(TiedGradients, PaddingHasNoRow) {
  expect_same_gradient(
      [](const Tensor& weight, const Tensor& tokens) {
        const auto options = F::EmbeddingFuncOptions().padding_idx(4);
        return as_loss(F::linear(F::embedding(tokens, weight, options), weight));
      },
      {.scattered = 0, .sums = 0, .sums_in_place = 0, .rows_in_place = 1});
}

TEST(TiedGradients, TwoLookupsStayDenseForTheirRounding) {
  expect_same_gradient(
      [](const Tensor& weight, const Tensor& tokens) {
        const Tensor x = F::embedding(tokens, weight) + F::embedding(tokens.flip(1), weight);
        return as_loss(F::linear(x, weight));
      },
      {.scattered = 2, .sums = 0, .sums_in_place = 2});
}

TEST(TiedGradients, ScalingByFrequencyStaysDense) {
  expect_same_gradient(
      [](const Tensor& weight, const Tensor& tokens) {
        const auto options = F::EmbeddingFuncOptions().scale_grad_by_freq(true);
        return as_loss(F::linear(F::embedding(tokens, weight, options), weight));
      },
      {.scattered = 1, .sums = 0, .sums_in_place = 1});
}

TEST(TiedGradients, LayersThatShareAWeightAddInPlace) {
  expect_same_gradient(
      [](const Tensor& weight, const Tensor& tokens) {
        const Tensor x = torch::ones({5, kWidth}, weight.options()) * tokens.sum();
        return as_loss(F::linear(F::linear(x, weight), weight.t()));
      },
      {.scattered = 0, .sums = 0, .sums_in_place = 1});
}

// The gradient of `sums + weight` is one tensor for both: rows must not be added to it.
TEST(TiedGradients, AGradientThatOthersHoldIsNotAddedTo) {
  const auto held = std::make_shared<Tensor>();
  expect_same_gradient(
      [&](const Tensor& weight, const Tensor& tokens) {
        const Tensor rows = F::embedding(tokens, weight).flatten(0, 1);
        const Tensor sums = rows.narrow(0, 0, kVocabulary) + weight;
        sums.register_hook([held](const Tensor& gradient) { *held = gradient; });
        return as_loss(sums);
      },
      // The sum with rows is two operators, one inside the other.
      {.scattered = 0, .sums = 2, .sums_in_place = 0, .rows_in_place = 0});
}

TEST(TiedGradients, AHookOnTheWeightSeesAllOfItsGradient) {
  expect_same_gradient(
      [](const Tensor& weight, const Tensor& tokens) {
        weight.register_hook([](const Tensor& gradient) { return gradient * 3; });
        return as_loss(F::linear(F::embedding(tokens, weight), weight));
      },
      {.scattered = 1, .sums = 0, .sums_in_place = 1, .rows_in_place = 0});
}

// As a pipeline's stages do: a graph is always alive, so what was prepared for the one before still is.
TEST(TiedGradients, GraphsThatOverlap) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    std::vector<Tensor> found;
    for (const bool row_gradients : {true, false}) {
      torch::manual_seed(3);
      OneWeight model(at::kFloat);
      zero::EngineOptions options{.stage = 3};
      options.row_gradients = row_gradients;
      zero::Engine engine(model, zero::AdamW{}, options, mesh);
      const Tensor tokens = torch::randint(0, 9, {4, 16}, torch::kLong);
      const auto forward = [&] {
        return engine.forward(
            [&] { return as_loss(F::linear(F::embedding(tokens, model.weight), model.weight)); });
      };
      Tensor next = forward();
      for (int step = 0; step < 4; ++step) {
        const Tensor loss = std::exchange(next, forward());
        engine.backward(loss);
        engine.step();
      }
      // The lookup of this one has run, its weight has not.
      const Tensor fails = engine.forward([&] {
        const Tensor rows = F::embedding(tokens, model.weight);
        const Tensor logits = F::linear(rows.detach(), model.weight);
        logits.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("on purpose"); });
        return as_loss(rows) + as_loss(logits);
      });
      EXPECT_THROW(engine.backward(fails), std::exception);
      const Tensor head_only = engine.forward([&] { return as_loss(model.weight * 2); });
      engine.backward(head_only);
      found.push_back(engine.full_gradient("weight"));
    }
    EXPECT_TRUE(torch::equal(found[0], found[1]));
  });
}

// A lookup in something that is made from the weight needs its gradient dense.
TEST(TiedGradients, ALookupInAProductStaysDense) {
  expect_same_gradient(
      [](const Tensor& weight, const Tensor& tokens) {
        return as_loss(F::linear(F::embedding(tokens, weight * 2), weight));
      },
      {.scattered = 1, .sums = 0, .sums_in_place = 1});
}

TEST(TiedGradients, AnEmbeddingAloneStaysDense) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    const auto alone = [](const Tensor& weight, const Tensor& tokens) {
      return as_loss(F::embedding(tokens, weight));
    };
    const Found rows = gradient_of(mesh, at::kFloat, true, alone),
                dense = gradient_of(mesh, at::kFloat, false, alone);
    EXPECT_EQ(rows.matrices.scattered, 1);
    EXPECT_TRUE(torch::equal(rows.gradient, dense.gradient));
  });
}
}  // namespace
