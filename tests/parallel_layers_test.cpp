// Layers written for tensor-parallel ranks: on any number of them, under every ZeRO stage, they are one
// process's.
#include "zero/parallel_layers.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"
#include "zero/engine.h"
#include "zero/lazy.h"

namespace parallel_layers {
namespace {

using namespace zero::testing;
using at::Tensor;
using zero::Mesh;

constexpr int64_t kWords = 53, kWidth = 24, kHidden = 37, kBatch = 4, kLength = 7;

RankOptions mesh_of(int dp, int tp) {
  RankOptions options;
  options.mesh.axes = {{"dp", dp}, {"tp", tp}};
  return options;
}

struct Shape {
  std::string name;
  int64_t heads = 6, kv_heads = 6;
  bool fused = true;
  double dropout = 0;
};

// Six heads and three of keys on 2, 3 and 4 ranks: evenly, unevenly, and fewer than ranks.
const std::vector<Shape> kShapes{{"fused"},
                                 {"fused, grouped", 6, 3},
                                 {"fused, one key", 6, 1},
                                 {"apart, grouped", 6, 3, false},
                                 {"apart, two keys", 6, 2, false},
                                 {"dropout", 6, 3, true, 0.2},
                                 {"apart, dropout", 6, 2, false, 0.2}};

/// A block of every layer, with a tied head.
struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(const Shape& shape) {
    words = register_module("words", zero::VocabParallelEmbedding(zero::VocabParallelEmbeddingOptions{
                                         .words = kWords, .width = kWidth, .padding = 3}));
    attention = register_module(
        "attention", zero::ParallelAttention(zero::ParallelAttentionOptions{.width = kWidth,
                                                                            .heads = shape.heads,
                                                                            .kv_heads = shape.kv_heads,
                                                                            .head_width = 5,
                                                                            .fused = shape.fused,
                                                                            .dropout = shape.dropout}));
    up = register_module("up", zero::ColumnParallelLinear(kWidth, kHidden));
    down = register_module("down", zero::RowParallelLinear(zero::RowParallelLinearOptions{
                                       .in = kHidden, .out = kWidth, .input_is_parallel = true}));
    whole = register_module("whole", zero::ColumnParallelLinear(zero::ColumnParallelLinearOptions{
                                         .in = kWidth, .out = 11, .bias = false, .gather_output = true}));
    back = register_module("back", zero::RowParallelLinear(11, kWidth));
  }
  Tensor logits(const Tensor& ids) {
    Tensor x = words(ids);
    x = x + attention(x);
    x = x + down(torch::gelu(up(x)));
    x = x + back(torch::tanh(whole(x)).flip(-1));
    return torch::linear(x, words->weight);
  }
  Tensor loss(const Tensor& ids, const Tensor& targets) {
    return zero::vocab_parallel_cross_entropy(logits(ids), targets,
                                              {.ignore_index = 5, .label_smoothing = 0.1});
  }
  zero::VocabParallelEmbedding words{nullptr};
  zero::ParallelAttention attention{nullptr};
  zero::ColumnParallelLinear up{nullptr}, whole{nullptr};
  zero::RowParallelLinear down{nullptr}, back{nullptr};
};
TORCH_MODULE(Model);

struct Rows {
  Tensor ids, targets;
  Rows(uint64_t seed, int64_t first, int64_t count) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const auto draw = [&] {
      return at::randint(0, kWords, {kBatch, kLength}, generator, at::kLong).narrow(0, first, count);
    };
    ids = draw();
    targets = draw();
    // As many on all rows: the mean of ranks' means is the mean.
    targets.masked_fill_(targets == 5, 6).select(1, 2).fill_(5);
    ids.select(1, 1).fill_(3);
  }
};

/// A model cut over the mesh, with its engine.
struct Trained {
  Trained(const Shape& shape, int stage, bool sequence, const Mesh& mesh) {
    torch::manual_seed(3);
    module = zero::lazily([&] { return Model(shape); }).ptr();
    parallel = zero::parallelize(*module, {}, mesh, {.sequence = sequence});
    zero::EngineOptions options{.stage = stage, .accumulation_steps = 2, .gradient_clipping = 0.5};
    parallel.add_to(options);
    engine = std::make_unique<zero::Engine>(*module, zero::AdamW{.lr = 0.01, .eps = 1e-3}, options, mesh);
  }

  std::pair<double, double> step(uint64_t number) {
    const zero::Group dp = engine->mesh().group("dp");
    const int64_t rows = kBatch / dp.size();
    double sum = 0;
    for (uint64_t micro = 0; micro < 2; ++micro) {
      const Rows batch(100 * number + micro, rows * dp.rank(), rows);
      torch::manual_seed(7 * number + micro);
      const Tensor loss = engine->forward([&] { return module->loss(batch.ids, batch.targets); });
      engine->backward(loss);
      sum += loss.item<double>();
    }
    return {sum / 2, engine->step().clip().norm_before};
  }

  std::shared_ptr<ModelImpl> module;
  zero::TensorParallel parallel;
  std::unique_ptr<zero::Engine> engine;
};

void expect_parameters(Trained& run, Trained& one, double near, const std::string& name) {
  for (const std::string& parameter : one.engine->parameter_names()) {
    const Tensor expected = run.parallel.part_of(parameter, one.engine->full_parameter(parameter));
    const Tensor held = run.engine->full_parameter(parameter).view(expected.sizes());
    EXPECT_LE((held - expected).abs().max().item<double>(), near) << name << " " << parameter;
  }
}

TEST(ParallelLayers, AreOneProcessAtEveryStage) {
  for (const int ranks : {2, 3, 4})
    run_ranks(
        ranks,
        [&](const Mesh& mesh) {
          int stage = 0;
          for (const Shape& shape : kShapes)
            for (const bool sequence : {false, true}) {
              const std::string name = shape.name + (sequence ? ", sequence" : "") + " at stage " +
                                       std::to_string(stage) + " on " + std::to_string(ranks);
              Trained run(shape, stage, sequence, mesh), one(shape, stage, false, Mesh::join({}));
              expect_parameters(run, one, 0, name + ", as built");
              for (uint64_t number = 0; number < 3; ++number) {
                const auto [loss, norm] = run.step(number);
                const auto [expected_loss, expected_norm] = one.step(number);
                EXPECT_NEAR(loss, expected_loss, 1e-5 * expected_loss) << name;
                EXPECT_NEAR(norm, expected_norm, 3e-5 * expected_norm) << name;
              }
              expect_parameters(run, one, 2e-5, name);
              const auto gathered = run.parallel.report().gathered;
              EXPECT_TRUE(gathered.empty()) << name << " " << gathered.begin()->first;
              stage = (stage + 1) % 4;
            }
        },
        mesh_of(1, ranks));
}

TEST(ParallelLayers, ShareDataParallelRanks) {
  run_ranks(
      4,
      [](const Mesh& mesh) {
        for (const int stage : {0, 1, 2, 3}) {
          Trained run(kShapes[1], stage, stage % 2 == 1, mesh), one(kShapes[1], stage, false, Mesh::join({}));
          for (uint64_t number = 0; number < 2; ++number) run.step(number), one.step(number);
          expect_parameters(run, one, 3e-5, "stage " + std::to_string(stage));
        }
      },
      mesh_of(2, 2));
}

TEST(ParallelLayers, CheckpointsGoToAnyRanks) {
  for (const Shape& shape : {kShapes[2], kShapes[3], kShapes[4]}) {
    const TemporaryDirectory folder;
    run_ranks(
        3,
        [&](const Mesh& mesh) {
          Trained run(shape, 3, true, mesh);
          run.step(0);
          run.engine->save(folder.path());
        },
        mesh_of(1, 3));
    const auto saved = zero::latest_checkpoint(folder.path());
    for (const int ranks : {1, 2, 4})
      run_ranks(
          ranks,
          [&](const Mesh& mesh) {
            Trained run(shape, 1, false, mesh), one(shape, 0, false, Mesh::join({}));
            run.engine->load(saved);
            one.engine->load(saved);
            expect_parameters(run, one, 0, shape.name);
          },
          mesh_of(1, ranks));
  }
}

// Without a mesh the layers are torch::nn's, and draw the same.
TEST(ParallelLayers, AloneAreOrdinaryLayers) {
  torch::manual_seed(1);
  zero::ColumnParallelLinear columns(5, 7);
  zero::RowParallelLinear rows(7, 5);
  torch::manual_seed(1);
  torch::nn::Linear first(5, 7), second(7, 5);
  EXPECT_TRUE(at::equal(columns->weight, first->weight));
  EXPECT_TRUE(at::equal(rows->bias, second->bias));
  const Tensor x = torch::randn({3, 5});
  EXPECT_TRUE(at::equal(rows(columns(x)), second(first(x))));
  const auto copy = std::dynamic_pointer_cast<zero::ColumnParallelLinearImpl>(columns->clone());
  EXPECT_TRUE(at::equal(copy->forward(x), first(x)));
}

// Smoothing is spread over the whole vocabulary, of which ranks hold unequal parts.
TEST(ParallelLayers, LossesAreThoseOfTheWholeVocabulary) {
  using Options = zero::VocabParallelCrossEntropyOptions;
  run_ranks(
      3,
      [](const Mesh& mesh) {
        torch::manual_seed(2);
        zero::ColumnParallelLinear head(8, 50);
        torch::manual_seed(2);
        torch::nn::Linear whole(8, 50);
        const auto parallel = zero::parallelize(*head, {}, mesh);
        const Tensor x = torch::randn({2, 5, 8}), targets = torch::arange(10).view({2, 5}) * 5;
        for (const double smoothing : {0.0, 0.3})
          for (const int64_t ignored : {-100, 25})
            for (const auto reduction :
                 {Options::Reduction::Mean, Options::Reduction::Sum, Options::Reduction::None}) {
              head->zero_grad();
              whole->zero_grad();
              const Tensor expected =
                  at::cross_entropy_loss(whole(x).flatten(0, 1), targets.flatten(), {},
                                         reduction == Options::Reduction::Mean  ? at::Reduction::Mean
                                         : reduction == Options::Reduction::Sum ? at::Reduction::Sum
                                                                                : at::Reduction::None,
                                         ignored, smoothing);
              const Tensor loss = parallel.forward([&] {
                return zero::vocab_parallel_cross_entropy(
                    head(x), targets,
                    {.ignore_index = ignored, .reduction = reduction, .label_smoothing = smoothing});
              });
              ASSERT_EQ(loss.sizes(),
                        reduction == Options::Reduction::None ? targets.sizes() : expected.sizes());
              EXPECT_TRUE(at::allclose(loss.flatten(), expected.flatten(), 1e-5, 1e-6));
              loss.square().sum().backward();
              expected.square().sum().backward();
              const Tensor wanted = parallel.part_of("weight", whole->weight.grad());
              EXPECT_LT((head->weight.grad() - wanted).abs().max().item<double>(),
                        1e-5 * wanted.abs().max().item<double>());
            }
        EXPECT_TRUE(parallel.report().gathered.empty());
        const auto loss_of = [&](const Tensor& some, const Options& options = {}) {
          parallel.forward([&] { return zero::vocab_parallel_cross_entropy(head(x), some, options); });
        };
        EXPECT_ERROR(loss_of(targets + 9), Usage, "outside the vocabulary of 50");
        EXPECT_ERROR(loss_of(targets.flatten()), Usage,
                     "targets of the sizes before, got [2, 5, 50] and [10]");
        EXPECT_ERROR(loss_of(targets.to(torch::kInt)), Usage, "expected targets of int64, got Int");
        EXPECT_ERROR(loss_of(targets, {.label_smoothing = 1.5}), Config, "label_smoothing: expected 0..1");
      },
      mesh_of(1, 3));
}

// A parameter that the loss does not reach has no gradient on any rank, and one of zeros has zeros.
TEST(ParallelLayers, GradientsThatAreMissingOrZeroAreSoOnAllRanks) {
  run_ranks(
      2,
      [](const Mesh& mesh) {
        zero::ColumnParallelLinear up(6, 10);
        const auto parallel = zero::parallelize(*up, {}, mesh);
        const Tensor x = torch::randn({4, 6});
        const auto forward = [&](bool with_bias) {
          return parallel.forward([&] {
            const Tensor y = with_bias ? up(x) : torch::linear(x, up->weight);
            return with_bias ? (y * torch::zeros({4, 10})).sum() : y.sum();
          });
        };
        forward(false).backward();
        EXPECT_FALSE(up->bias.grad().defined());
        EXPECT_EQ(up->weight.grad().size(0), 5);
        forward(true).backward();
        EXPECT_EQ(up->bias.grad().abs().sum().item<float>(), 0);
      },
      mesh_of(1, 2));
}

TEST(ParallelLayers, SizesThatDoNotFitAreRefused) {
  using Column = zero::ColumnParallelLinearOptions;
  EXPECT_ERROR(zero::ColumnParallelLinear(0, 4), Config, "expected sizes of at least 1, got 0 and 4");
  EXPECT_ERROR(zero::ColumnParallelLinear(Column{.in = 4, .out = 9, .blocks = {{4, 2}, {4, 2}}}), Config,
               "blocks of 8 outputs do not fit 9");
  EXPECT_ERROR(
      zero::ParallelAttention(zero::ParallelAttentionOptions{.width = 24, .heads = 6, .kv_heads = 4}), Config,
      "kv_heads: expected a divisor of 6 heads, got 4");
  EXPECT_ERROR(
      zero::VocabParallelEmbedding(zero::VocabParallelEmbeddingOptions{.words = 4, .width = 2, .padding = 4}),
      Config, "padding: expected a row below 4, got 4");
  run_ranks(
      4,
      [](const Mesh& mesh) {
        zero::ParallelAttention attention(zero::ParallelAttentionOptions{.width = 24, .heads = 3});
        EXPECT_ERROR(zero::parallelize(*attention, {}, mesh), Config, "4 ranks cannot share 3 heads");
        zero::VocabParallelEmbedding words(3, 8);
        EXPECT_ERROR(zero::parallelize(*words, {}, mesh), Config,
                     "4 ranks cannot share 3 elements of dim 0; take at most 3 tensor-parallel ranks");
        zero::RowParallelLinear rows(
            zero::RowParallelLinearOptions{.in = 8, .out = 8, .input_is_parallel = true});
        const auto parallel = zero::parallelize(*rows, {}, mesh);
        EXPECT_ERROR(
            parallel.forward([&] {
              return rows(torch::ones({2, 8}));
            }),
            Usage,
            "input_is_parallel: expected parts of 8 features, as a column-parallel layer leaves them, "
            "got a tensor [2, 8] that is whole");
      },
      mesh_of(1, 4));
}

}  // namespace
}  // namespace parallel_layers
