// Modules that do not know of ranks, cut over them: losses and gradients are those of one process.
#include "zero/tensor_parallel.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/linear.h>

#include <functional>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "zero/error.h"
#include "zero/gpt2.h"
#include "zero/gpt_neox.h"
#include "zero/language_model_plan.h"
#include "zero/llama.h"

namespace {

using namespace zero::testing;
using zero::Mesh;

RankOptions tensor_ranks() {
  RankOptions options;
  options.mesh.axes = {{"dp", 1}, {"tp", -1}};
  return options;
}

// |a - b| beside the largest of b.
double distance(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-12)).item<double>();
}

struct LanguageCase {
  std::string name;
  zero::ModelShape shape;
  int ranks = 2;
  bool sequence = false;
};

constexpr int64_t kVocabulary = 101, kBatch = 2, kLength = 13;

zero::Gpt2Shape gpt2(double dropout = 0) {
  return {.vocab_size = kVocabulary,
          .context_length = 16,
          .layers = 2,
          .width = 32,
          .heads = 4,
          .dropout = dropout};
}
zero::LlamaShape llama(int64_t kv_heads, int64_t mlp_width = 50) {
  return {.vocab_size = kVocabulary,
          .context_length = 16,
          .layers = 2,
          .width = 24,
          .heads = 4,
          .kv_heads = kv_heads,
          .head_width = 6,
          .mlp_width = mlp_width};
}
zero::GptNeoxShape neox() {
  return {
      .vocab_size = kVocabulary, .context_length = 16, .layers = 2, .width = 32, .heads = 4, .mlp_width = 54};
}

struct Tokens {
  at::Tensor tokens, targets;
  explicit Tokens(uint64_t seed) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    tokens = at::randint(0, kVocabulary, {kBatch, kLength}, generator, at::kLong);
    targets = at::randint(0, kVocabulary, {kBatch, kLength}, generator, at::kLong);
    targets[0][3] = -100;
  }
};

std::shared_ptr<zero::LanguageModel> model_of(const zero::ModelShape& shape) {
  torch::manual_seed(7);
  return zero::make_language_model(shape);
}

void step_down(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : module.parameters()) {
    parameter.sub_(parameter.grad(), 0.1);
    parameter.mutable_grad() = at::Tensor();
  }
}

void expect_as_one_process(const LanguageCase& which, const Mesh& mesh) {
  const auto one = model_of(which.shape), model = model_of(which.shape);
  const auto plan = zero::tensor_parallel_plan(*model, which.shape, which.ranks);
  const auto parallel = zero::parallelize(*model, plan, mesh, {.sequence = which.sequence});
  for (uint64_t step = 0; step < 3; ++step) {
    const Tokens batch(step);
    torch::manual_seed(step);
    const at::Tensor expected = one->loss(batch.tokens, batch.targets);
    expected.backward();
    torch::manual_seed(step);
    const at::Tensor loss = parallel.forward([&] { return model->loss(batch.tokens, batch.targets); });
    loss.backward();
    EXPECT_LT(distance(loss, expected), 1e-6) << which.name << " step " << step;
    const auto parameters = model->named_parameters();
    for (const auto& item : one->named_parameters()) {
      const at::Tensor gradient = parameters[item.key()].grad();
      ASSERT_TRUE(gradient.defined()) << which.name << " " << item.key();
      EXPECT_LT(distance(gradient, parallel.part_of(item.key(), item.value().grad())), 1e-5)
          << which.name << " step " << step << " " << item.key();
    }
    step_down(*one);
    step_down(*model);
  }
  EXPECT_TRUE(parallel.report().gathered.empty())
      << which.name << " " << parallel.report().gathered.begin()->first << ": "
      << parallel.report().gathered.begin()->second;
}

TEST(TensorParallel, OurModelsAreThoseOfOneProcess) {
  // Three share four heads and two or four of keys: unevenly, by whole heads.
  for (const int ranks : {2, 3, 4}) {
    std::vector<LanguageCase> cases;
    for (const bool sequence : {false, true}) {
      const std::string name = sequence ? ", sequence" : "";
      cases.push_back({"gpt2" + name, gpt2(), ranks, sequence});
      cases.push_back({"gpt2 dropout" + name, gpt2(0.2), ranks, sequence});
      cases.push_back({"llama" + name, llama(4), ranks, sequence});
      cases.push_back({"llama grouped" + name, llama(2), ranks, sequence});
      cases.push_back({"llama one kv" + name, llama(1, 51), ranks, sequence});
      cases.push_back({"neox" + name, neox(), ranks, sequence});
    }
    run_ranks(
        ranks,
        [&](const Mesh& mesh) {
          for (const LanguageCase& which : cases) expect_as_one_process(which, mesh);
        },
        tensor_ranks());
  }
}

/// Two layers, with what a test puts between them: [rows, 16], of which ranks hold parts.
struct BetweenImpl : torch::nn::Module {
  using Middle = std::function<at::Tensor(const at::Tensor&)>;
  explicit BetweenImpl(Middle between) : middle(std::move(between)) {
    torch::manual_seed(5);
    up = register_module("up", torch::nn::Linear(8, 16));
    down = register_module("down", torch::nn::Linear(16, 8));
  }
  at::Tensor loss(const at::Tensor& x) { return down(middle(up(x))).square().mean(); }
  Middle middle;
  torch::nn::Linear up{nullptr}, down{nullptr};
};
TORCH_MODULE(Between);

const zero::TensorParallelPlan kUpDown{{"up.*", "colwise"}, {"down.weight", "rowwise"}};

struct Square : torch::autograd::Function<Square> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    return {2 * gradients[0] * context->get_saved_variables()[0]};
  }
};

/// What a module computes between its layers, and the operator of gathered tensors that takes; "": none.
struct Operation {
  std::string name;
  BetweenImpl::Middle middle;
  std::string gathered;
};

std::vector<Operation> operations() {
  using at::Tensor;
  const at::Tensor scale = torch::linspace(0.5, 2, 16);
  return {
      {"elementwise", [=](const Tensor& x) { return torch::gelu(x * scale).add(x, 0.5); }, ""},
      {"in place", [](const Tensor& x) { return x.clone().mul_(2).add_(x); }, ""},
      {"views",
       [](const Tensor& x) {
         return x.view({2, -1, 4, 4}).permute({2, 0, 1, 3}).permute({1, 2, 0, 3}).flatten(2).flatten(0, 1);
       },
       ""},
      {"softmax of heads",
       [](const Tensor& x) {
         return torch::softmax(x.view({-1, 4, 4}), -1).flatten(1);
       },
       ""},
      {"norm over features", [](const Tensor& x) { return x / x.square().sum(-1, true).sqrt(); }, ""},
      {"mean of all", [](const Tensor& x) { return x * x.mean(); }, ""},
      {"stack",
       [](const Tensor& x) {
         return torch::stack({x, x * 2}, 0).sum(0);
       },
       ""},
      {"outer product of heads",
       [](const Tensor& x) {
         const Tensor heads = x.view({-1, 4, 4}).transpose(0, 1);
         return torch::matmul(torch::matmul(heads, heads.transpose(1, 2)), heads)
             .transpose(0, 1)
             .reshape({-1, 16});
       },
       ""},
      {"einsum",
       [](const Tensor& x) {
         return torch::einsum("bhi,bhj->bhij", {x.view({-1, 4, 4}), x.view({-1, 4, 4})}).sum(-1).flatten(1);
       },
       ""},
      {"function of one's own", [](const Tensor& x) { return Square::apply(x); }, ""},
      {"detach", [](const Tensor& x) { return x * x.detach(); }, ""},
      {"cumsum", [](const Tensor& x) { return x.cumsum(-1); }, "aten::cumsum"},
      {"softmax over features", [](const Tensor& x) { return torch::softmax(x, -1); }, "aten::softmax"},
      {"flip", [](const Tensor& x) { return x.flip(-1); }, "aten::flip"},
      {"slice across ranks",
       [](const Tensor& x) {
         return torch::cat({x.slice(-1, 5), x.slice(-1, 0, 5)}, -1);
       },
       "aten::slice"},
      {"three heads",
       [](const Tensor& x) {
         return torch::constant_pad_nd(x, {0, 2})
             .view({-1, 3, 6})
             .sum(-1, true)
             .expand({-1, 3, 6})
             .flatten(1)
             .slice(1, 0, 16);
       },
       "aten::constant_pad_nd"},
      {"read", [](const Tensor& x) { return x * zero::gathered(x).sum().item<float>(); }, ""},
  };
}

TEST(TensorParallel, OperatorsAreThoseOfOneProcess) {
  run_ranks(
      2,
      [](const Mesh& mesh) {
        const at::Tensor x = torch::linspace(-1, 1, 6 * 8).view({6, 8});
        for (const Operation& operation : operations()) {
          Between one(operation.middle), model(operation.middle);
          const auto parallel = zero::parallelize(*model, kUpDown, mesh);
          one->loss(x).backward();
          const at::Tensor loss = parallel.forward([&] { return model->loss(x); });
          loss.backward();
          EXPECT_LT(distance(loss, one->loss(x)), 1e-6) << operation.name;
          const auto parameters = model->named_parameters();
          for (const auto& item : one->named_parameters())
            EXPECT_LT(
                distance(parameters[item.key()].grad(), parallel.part_of(item.key(), item.value().grad())),
                1e-5)
                << operation.name << " " << item.key();
          const auto gathered = parallel.report().gathered;
          EXPECT_EQ(gathered.contains(operation.gathered), !operation.gathered.empty())
              << operation.name << " "
              << (gathered.empty() ? "" : gathered.begin()->first + ": " + gathered.begin()->second);
        }
      },
      tensor_ranks());
}

// LibTorch's linear layer adds its bias in place where batch and sequence are two dims.
TEST(TensorParallel, LinearLayersOfSequencesAreThoseOfOneProcess) {
  run_ranks(
      2,
      [](const Mesh& mesh) {
        const at::Tensor x = torch::linspace(-1, 1, 2 * 7 * 8).view({2, 7, 8});
        for (const bool sequence : {false, true}) {
          const auto middle = [](const at::Tensor& y) { return torch::tanh(y); };
          Between one(middle), model(middle);
          const auto parallel = zero::parallelize(*model, kUpDown, mesh, {.sequence = sequence});
          const auto loss_of = [&](Between& net) { return net->loss(net->down(net->up(x)) + x); };
          const at::Tensor expected = loss_of(one);
          expected.backward();
          const at::Tensor loss = parallel.forward([&] { return loss_of(model); });
          loss.backward();
          EXPECT_LT(distance(loss, expected), 1e-6);
          const auto parameters = model->named_parameters();
          for (const auto& item : one->named_parameters())
            EXPECT_LT(
                distance(parameters[item.key()].grad(), parallel.part_of(item.key(), item.value().grad())),
                1e-5)
                << item.key();
          EXPECT_TRUE(parallel.report().gathered.empty()) << parallel.report().gathered.begin()->first;
        }
      },
      tensor_ranks());
}

TEST(TensorParallel, WhatHasNoRuleIsRefusedWhereAsked) {
  run_ranks(
      2,
      [](const Mesh& mesh) {
        const at::Tensor x = torch::ones({6, 8});
        Between model([](const at::Tensor& y) { return y.cumsum(-1); });
        const auto parallel = zero::parallelize(*model, kUpDown, mesh, {.gather_unknown = false});
        EXPECT_ERROR(parallel.forward([&] { return model->loss(x); }), Unsupported, "aten::cumsum");
        // Only a gathered copy would change.
        Between writes([](const at::Tensor& y) { return y.clone().cumsum_(-1); });
        const auto other = zero::parallelize(*writes, kUpDown, mesh);
        EXPECT_ERROR(other.forward([&] { return writes->loss(x); }), Unsupported, "aten::cumsum_");
      },
      tensor_ranks());
}

// [rows, vocabulary] of which each rank makes its part.
struct HeadImpl : torch::nn::Module {
  HeadImpl() {
    torch::manual_seed(5);
    head = register_module("head", torch::nn::Linear(8, kVocabulary));
  }
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Head);

TEST(TensorParallel, LossesOverACutVocabularyAreThoseOfOneProcess) {
  run_ranks(
      4,
      [](const Mesh& mesh) {
        const at::Tensor x = torch::linspace(-3, 3, 10 * 8).view({10, 8});
        at::Tensor targets = torch::arange(10) * 11;
        targets[2] = targets[7] = 5;
        for (const double smoothing : {0.0, 0.1})
          for (const int64_t ignored : {-100, 5})
            for (const auto reduction : {at::Reduction::Mean, at::Reduction::Sum, at::Reduction::None}) {
              Head one, model;
              const auto parallel = zero::parallelize(*model, {{"head.*", "vocab"}}, mesh);
              const auto loss_of = [&](Head& net) {
                const at::Tensor losses =
                    at::cross_entropy_loss(net->head(x), targets, {}, reduction, ignored, smoothing);
                return losses.dim() == 0 ? losses : (losses * torch::arange(10)).sum();
              };
              const at::Tensor expected = loss_of(one);
              expected.backward();
              const at::Tensor loss = parallel.forward([&] { return loss_of(model); });
              loss.backward();
              EXPECT_LT(distance(loss, expected), 1e-6);
              EXPECT_LT(distance(model->head->weight.grad(),
                                 parallel.part_of("head.weight", one->head->weight.grad())),
                        1e-5);
              EXPECT_LT(
                  distance(model->head->bias.grad(), parallel.part_of("head.bias", one->head->bias.grad())),
                  1e-5);
              EXPECT_TRUE(parallel.report().gathered.empty());
            }
        Head model;
        const auto parallel = zero::parallelize(*model, {{"head.*", "vocab"}}, mesh);
        targets[1] = kVocabulary;
        EXPECT_ERROR(parallel.forward([&] { return at::cross_entropy_loss(model->head(x), targets); }), Usage,
                     "outside the vocabulary of 101");
      },
      tensor_ranks());
}

TEST(TensorParallel, PlansThatDoNotFitAreRefused) {
  run_ranks(
      4,
      [](const Mesh& mesh) {
        const auto refuse = [&](const zero::TensorParallelPlan& plan) {
          Between model([](const at::Tensor& x) { return x; });
          zero::parallelize(*model, plan, mesh);
        };
        EXPECT_ERROR(refuse({{"upp.*", "colwise"}}), Config, "\"upp.*\" matches no parameter");
        EXPECT_ERROR(refuse({{"up.*", "columns"}}), Config,
                     "there is no word \"columns\"; words are colwise");
        EXPECT_ERROR(refuse({{"up.*", "fused"}}), Config, "there is no word \"fused\"");
        EXPECT_ERROR(refuse({{"up.*", "fused[3]"}}), Config, "3 fused blocks do not fit 16");
        EXPECT_ERROR(refuse({{"up.*", "kv[6]"}}), Config, "6 heads do not fit 16 rows");
        EXPECT_ERROR(refuse({{"down.bias", "rowwise"}}), Config, "added once");
        const auto model = model_of(gpt2());
        EXPECT_ERROR(zero::tensor_parallel_plan(*model, gpt2(), 5), Config,
                     "5 ranks cannot share 4 heads; at most 4 ranks could");
        Between twice([](const at::Tensor& x) { return x; });
        const auto parallel = zero::parallelize(*twice, kUpDown, mesh);
        parallel.forward([] { return 0; });
        EXPECT_ERROR(zero::parallelize(*twice, kUpDown, mesh), Usage, "tensor-parallel already");
      },
      tensor_ranks());
}

/// Collectives of one forward and backward of a GPT-2 with so many layers.
zero::Traffic traffic_of(const Mesh& mesh, int64_t layers, bool sequence, zero::Operation operation) {
  zero::Gpt2Shape shape = gpt2();
  shape.layers = layers;
  const auto model = model_of(shape);
  const auto parallel =
      zero::parallelize(*model, zero::tensor_parallel_plan(*model, shape, 2), mesh, {.sequence = sequence});
  const zero::Group tp = mesh.group("tp");
  const zero::Traffic before = tp.traffic(operation);
  const auto tokens = torch::arange(2 * 8).view({2, 8});
  parallel.forward([&] { return model->loss(tokens, tokens); }).backward();
  const zero::Traffic after = tp.traffic(operation);
  return {after.calls - before.calls, after.elements - before.elements, after.bytes - before.bytes};
}

// Two sums of activations forward and two backward in a layer; under sequence parallelism a gather and a
// scatter for each, of the same bytes.
TEST(TensorParallel, LayersSendWhatTheFormulasSay) {
  run_ranks(
      2,
      [](const Mesh& mesh) {
        const int64_t activation = 2 * 8 * 32;
        const auto layer = [&](bool sequence, zero::Operation operation) {
          const zero::Traffic two = traffic_of(mesh, 2, sequence, operation),
                              three = traffic_of(mesh, 3, sequence, operation);
          return std::pair(three.calls - two.calls, three.elements - two.elements);
        };
        using enum zero::Operation;
        EXPECT_EQ(layer(false, AllReduce), std::pair(4L, 4 * 2 * activation));
        EXPECT_EQ(layer(true, AllGather), std::pair(4L, 4 * activation));
        EXPECT_EQ(layer(true, ReduceScatter), std::pair(4L, 4 * activation));
        // Gradients of two norms' weights and biases, and of the biases behind the sums.
        EXPECT_EQ(layer(true, AllReduce), std::pair(6L, 6 * 2 * int64_t{32}));
      },
      tensor_ranks());
}

}  // namespace
