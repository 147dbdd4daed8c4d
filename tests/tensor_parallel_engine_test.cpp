// Parallel modules under the engine: dp x tp at every stage is one process, and checkpoints know no mesh.
#include <ATen/ops/allclose.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "support/ranks.h"
#include "support/temporary_directory.h"
#include "zero/checkpoint.h"
#include "zero/engine.h"
#include "zero/gpt2.h"
#include "zero/gpt_neox.h"
#include "zero/language_model_plan.h"
#include "zero/lazy.h"
#include "zero/llama.h"

namespace {

using namespace zero::testing;
using zero::Mesh;

constexpr int64_t kWords = 53, kRows = 4, kPositions = 9;

const zero::Gpt2Shape kGpt2{.vocab_size = kWords, .context_length = 12, .layers = 2, .width = 24, .heads = 4};
const zero::LlamaShape kLlama{.vocab_size = kWords,
                              .context_length = 12,
                              .layers = 2,
                              .width = 20,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_width = 6,
                              .mlp_width = 27};
const zero::GptNeoxShape kNeox{.vocab_size = kWords,
                               .context_length = 12,
                               .layers = 2,
                               .width = 24,
                               .heads = 4,
                               .mlp_width = 45,
                               .rotary_fraction = 0.7};

RankOptions mesh_of(int dp, int tp) {
  RankOptions options;
  options.mesh.axes = {{"pp", 1}, {"dp", dp}, {"tp", tp}};
  return options;
}

// Where gradients are rounding errors (a key's bias) its steps must be, too.
zero::AdamW optimizer() { return {.lr = 0.01, .eps = 1e-3, .weight_decay = 0.1}; }

std::shared_ptr<zero::LanguageModel> seeded(const zero::ModelShape& shape) {
  torch::manual_seed(3);
  return zero::make_language_model(shape);
}

struct Rows {
  at::Tensor tokens, targets;
  Rows(uint64_t seed, int64_t first, int64_t count) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    tokens = at::randint(0, kWords, {kRows, kPositions}, generator, at::kLong).narrow(0, first, count);
    targets = at::randint(0, kWords, {kRows, kPositions}, generator, at::kLong).narrow(0, first, count);
  }
};

struct ParallelRun {
  std::string name;
  zero::ModelShape shape;
  int stage = 0, accumulation = 1;
  bool sequence = false;
  bool bf16 = false;
  int64_t adapters = 0;  // rank; the rest is frozen
};

/// A model, cut over the mesh, with its engine.
struct ParallelModel {
  ParallelModel(const ParallelRun& run, const Mesh& mesh,
                std::shared_ptr<zero::LanguageModel> built = nullptr)
      : model(built ? built : seeded(run.shape)) {
    if (run.adapters > 0) {
      for (at::Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
      torch::manual_seed(5);
      zero::add_adapters(*model, {.rank = run.adapters, .alpha = 4, .targets = {"*"}, .from = {}});
    }
    const int ranks = mesh.size() == 1 ? 1 : mesh.group("tp").size();
    parallel = zero::parallelize(*model, zero::tensor_parallel_plan(*model, run.shape, ranks), mesh,
                                 {.sequence = run.sequence});
    zero::EngineOptions options{
        .stage = run.stage, .accumulation_steps = run.accumulation, .gradient_clipping = 0.5};
    if (run.bf16) options.dtype = torch::kBFloat16;
    parallel.add_to(options);
    engine = std::make_unique<zero::Engine>(*model, optimizer(), options, mesh);
  }

  /// One optimizer step on this rank's rows of the batch; the loss of all of them.
  std::pair<double, double> step(const ParallelRun& run, uint64_t number) {
    const zero::Group dp = engine->mesh().group("dp");
    double sum = 0;
    for (int micro = 0; micro < run.accumulation; ++micro) {
      const int64_t rows = kRows / dp.size();
      const Rows batch(100 * number + static_cast<uint64_t>(micro), rows * dp.rank(), rows);
      const at::Tensor loss = engine->forward([&] { return model->loss(batch.tokens, batch.targets); });
      engine->backward(loss);
      at::Tensor all = loss.detach().to(torch::kDouble).reshape({1});
      dp.all_reduce(all, zero::Group::Reduce::Sum, "loss").wait();
      sum += all.item<double>() / dp.size();
    }
    return {sum / run.accumulation, engine->step().clip().norm_before};
  }

  std::shared_ptr<zero::LanguageModel> model;
  zero::TensorParallel parallel;
  std::unique_ptr<zero::Engine> engine;
};

void expect_equal(const ParallelRun& run, const Mesh& mesh) {
  ParallelModel one(run, Mesh::join({})), cut(run, mesh);
  const double near = run.bf16 ? 2e-2 : 1e-5;
  for (uint64_t number = 0; number < 4; ++number) {
    const auto [loss, norm] = cut.step(run, number);
    const auto [expected_loss, expected_norm] = one.step(run, number);
    EXPECT_NEAR(loss, expected_loss, near * expected_loss) << run.name << " step " << number;
    EXPECT_NEAR(norm, expected_norm, 3 * near * expected_norm) << run.name << " step " << number;
  }
  for (const std::string& name : one.engine->parameter_names()) {
    const at::Tensor whole = one.engine->full_parameter(name);
    const at::Tensor expected = cut.parallel.part_of(name, whole), held = cut.engine->full_parameter(name);
    EXPECT_TRUE(at::allclose(held.view(expected.sizes()), expected, 1e-4, run.bf16 ? 2e-2 : 1e-5))
        << run.name << " " << name << " "
        << (held.view(expected.sizes()) - expected).abs().max().item<double>();
  }
  EXPECT_TRUE(cut.parallel.report().gathered.empty()) << run.name;
}

void expect_all_equal(const std::vector<ParallelRun>& runs, int dp, int tp) {
  run_ranks(
      dp * tp,
      [&](const Mesh& mesh) {
        for (const ParallelRun& run : runs) expect_equal(run, mesh);
      },
      mesh_of(dp, tp));
}

TEST(TensorParallelEngine, EveryStageIsOneProcess) {
  expect_all_equal({{"gpt2 0", kGpt2, 0},
                    {"gpt2 1, sequence", kGpt2, 1, 2, true},
                    {"gpt2 2", kGpt2, 2, 2},
                    {"gpt2 3", kGpt2, 3},
                    {"gpt2 3, sequence", kGpt2, 3, 2, true},
                    {"llama 0, sequence", kLlama, 0, 1, true},
                    {"llama 1", kLlama, 1, 2},
                    {"llama 2, sequence", kLlama, 2, 1, true},
                    {"llama 3", kLlama, 3, 2},
                    {"neox 0", kNeox, 0, 2},
                    {"neox 2, sequence", kNeox, 2, 2, true},
                    {"neox 3", kNeox, 3, 1}},
                   2, 2);
}

TEST(TensorParallelEngine, FourTensorRanksShareTwoKeyHeads) {
  expect_all_equal({{"llama 3", kLlama, 3, 2}, {"llama 1, sequence", kLlama, 1, 1, true}}, 1, 4);
}

TEST(TensorParallelEngine, ThreeTensorRanksShareFourHeads) {
  expect_all_equal({{"gpt2 3, sequence", kGpt2, 3, 2, true},
                    {"gpt2 adapters", kGpt2, 1, 1, false, false, 3},
                    {"llama 2", kLlama, 2, 1},
                    {"neox 1", kNeox, 1, 2}},
                   1, 3);
}

TEST(TensorParallelEngine, Bf16AndAdaptersAreOneProcess) {
  expect_all_equal({{"gpt2 bf16", kGpt2, 2, 2, true, true},
                    {"llama bf16", kLlama, 3, 1, false, true},
                    {"gpt2 adapters", kGpt2, 3, 2, false, false, 3},
                    {"llama adapters, sequence", kLlama, 2, 1, true, false, 2}},
                   2, 2);
}

TEST(TensorParallelEngine, LazyModelsDrawAsOneProcess) {
  run_ranks(
      4,
      [](const Mesh& mesh) {
        for (const zero::ModelShape& shape : {zero::ModelShape(kGpt2), zero::ModelShape(kLlama)}) {
          const auto whole = seeded(shape);
          torch::manual_seed(3);
          const auto lazy = zero::lazily([&] { return zero::make_language_model(shape); });
          ParallelModel cut({"lazy", shape, 3}, mesh, lazy);
          for (const auto& item : whole->named_parameters()) {
            const at::Tensor expected = cut.parallel.part_of(item.key(), item.value()).detach();
            const at::Tensor held = cut.engine->full_parameter(item.key());
            EXPECT_TRUE(at::equal(held.view(expected.sizes()), expected)) << item.key();
          }
        }
      },
      mesh_of(2, 2));
}

// All of an engine's values, of this rank's parts, are those of a checkpoint's.
void expect_loads(const ParallelRun& run, const Mesh& mesh, const std::filesystem::path& path) {
  ParallelModel one(run, Mesh::join({})), cut(run, mesh);
  one.engine->load(path);
  cut.engine->load(path);
  for (const std::string& name : one.engine->parameter_names()) {
    const auto expect_part = [&](const at::Tensor& held, const at::Tensor& whole) {
      const at::Tensor expected = cut.parallel.part_of(name, whole);
      EXPECT_TRUE(at::equal(held.view(expected.sizes()), expected)) << run.name << " " << name;
    };
    expect_part(cut.engine->full_parameter(name), one.engine->full_parameter(name));
    expect_part(cut.engine->full_optimizer_state(name, "exp_avg"),
                one.engine->full_optimizer_state(name, "exp_avg"));
  }
}

TEST(TensorParallelEngine, CheckpointsGoFromAnyMeshToAnyOther) {
  const std::vector<ParallelRun> runs{
      {"gpt2", kGpt2, 3}, {"llama", kLlama, 1, 1, true}, {"bf16", kGpt2, 2, 1, false, true}};
  for (const ParallelRun& run : runs) {
    const TemporaryDirectory folder;
    const std::pair<int, int> meshes[] = {{2, 2}, {1, 2}, {1, 4}, {1, 3}};
    for (const auto& [dp, tp] : meshes)
      run_ranks(
          dp * tp,
          [&](const Mesh& mesh) {
            ParallelModel cut(run, mesh);
            for (uint64_t number = 0; number < 2; ++number) cut.step(run, number);
            const auto path =
                cut.engine->save(folder.path() / ("tp" + std::to_string(mesh.group("tp").size()) + "of" +
                                                  std::to_string(mesh.size())));
            // What was saved is what is held.
            ParallelModel one(run, Mesh::join({}));
            one.engine->load(path);
            for (const std::string& name : one.engine->parameter_names()) {
              const at::Tensor expected = cut.parallel.part_of(name, one.engine->full_parameter(name));
              const at::Tensor held = cut.engine->full_parameter(name);
              EXPECT_TRUE(at::equal(held.view(expected.sizes()), expected)) << run.name << " " << name;
            }
          },
          mesh_of(dp, tp));
    for (const auto& [dp, tp] : meshes)
      run_ranks(
          dp * tp,
          [&](const Mesh& mesh) {
            for (const char* from : {"tp2of4", "tp2of2", "tp4of4", "tp3of3"})
              expect_loads(run, mesh, zero::latest_checkpoint(folder.path() / from));
          },
          mesh_of(dp, tp));
  }
}

}  // namespace
