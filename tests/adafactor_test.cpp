// Adafactor in the engine: means over rows and columns are planned, saved, resumed on other ranks, read and
// written.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "support/temporary_directory.h"
#include "zero/engine.h"
#include "zero/error.h"

namespace {
using namespace zero::testing;
using torch::Tensor;

constexpr zero::Adafactor kAdafactor{.weight_decay = 0.1, .beta1 = 0.9};

struct FactoredRun {
  FactoredRun(const zero::Mesh& mesh, zero::EngineOptions options) {
    torch::manual_seed(5);
    model = SmallNet();
    options.gradient_clipping = 0.5;
    options.groups = {{.pattern = "*.bias", .lr_scale = 0.5, .weight_decay = 0}};
    engine = std::make_unique<zero::Engine>(*model, kAdafactor, options, mesh);
  }
  // The same batch on every rank: the mean of a power of two of them has the bits of one.
  void steps(int from, int to) {
    for (int i = from; i < to; ++i) {
      const Batch batch = batch_of(i, 2);
      engine->backward(engine->forward([&] { return model->loss(batch.tokens, batch.targets); }));
      EXPECT_FALSE(engine->step().skipped());
    }
  }
  std::string bytes() {
    std::string all;
    const auto add = [&](const Tensor& of) {
      all.append(static_cast<const char*>(of.contiguous().data_ptr()), of.nbytes());
    };
    for (const std::string& name : engine->parameter_names()) {
      const Tensor value = engine->full_parameter(name);
      add(value);
      add(engine->full_optimizer_state(name, "exp_avg"));
      if (value.dim() < 2) {
        add(engine->full_optimizer_state(name, "exp_avg_sq"));
        continue;
      }
      add(engine->full_optimizer_state(name, "exp_avg_sq_row"));
      add(engine->full_optimizer_state(name, "exp_avg_sq_col"));
    }
    return all;
  }
  SmallNet model{nullptr};
  std::unique_ptr<zero::Engine> engine;
};

TEST(Adafactor, ResumesBitForBitOnOtherRanksAndStages) {
  const TemporaryDirectory folder;
  std::string expected;
  for (const zero::Dtype dtype : {zero::Dtype::f32, zero::Dtype::bf16}) {
    const auto in_one = run_ranks(1, [&](const zero::Mesh& mesh) {
      FactoredRun run(mesh, {.dtype = dtype});
      run.steps(0, 6);
      hand_back(run.bytes());
    });
    for (const auto& [ranks, stage, others, other_stage] :
         {std::tuple{1, 0, 4, 3}, {4, 3, 2, 0}, {4, 1, 1, 0}, {2, 2, 4, 3}}) {
      const auto directory =
          folder.path() / std::to_string(ranks * 10 + stage) / std::to_string(static_cast<int>(dtype));
      run_ranks(ranks, [&, stage = stage](const zero::Mesh& mesh) {
        FactoredRun run(mesh, {.stage = stage, .dtype = dtype});
        run.steps(0, 3);
        run.engine->save(directory);
      });
      const auto resumed = run_ranks(others, [&, other_stage = other_stage](const zero::Mesh& mesh) {
        FactoredRun run(mesh, {.stage = other_stage, .dtype = dtype});
        run.engine->load(directory / "step-00000003");
        run.steps(3, 6);
        std::string bytes = run.bytes();
        if (mesh.rank() == 0) hand_back(std::move(bytes));
      });
      EXPECT_TRUE(resumed[0].bytes == in_one[0].bytes) << ranks << " to " << others << " ranks";
    }
  }
}

TEST(Adafactor, PlansAndHandsOutItsMeans) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    FactoredRun run(mesh, {.stage = 3});
    int64_t means = 0, elements = 0;
    for (const zero::UnitLayout& unit : run.engine->plan().units) {
      elements += unit.shard_numel;
      for (const zero::UnitParameter& one : unit.parameters)
        means += one.shape.size() < 2 ? one.numel : one.shape[0] + one.shape[1];
    }
    EXPECT_EQ(run.engine->plan().rank.optimizer_bytes, 4 * (elements + means));
    run.steps(0, 2);
    const std::string name = "layers.0.up.weight";
    EXPECT_EQ(run.engine->full_optimizer_state(name, "exp_avg_sq_row").sizes(), (std::vector<int64_t>{30}));
    EXPECT_EQ(run.engine->full_optimizer_state(name, "exp_avg_sq_col").sizes(), (std::vector<int64_t>{10}));
    EXPECT_ERROR(run.engine->full_optimizer_state(name, "exp_avg_sq"), Usage, "it has no optimizer state");
    EXPECT_ERROR(run.engine->local_optimizer_state(name, "exp_avg_sq_row"), Usage,
                 "keeps its optimizer state");
    const Tensor set = torch::arange(1, 31).to(torch::kFloat);
    run.engine->set_full_optimizer_state(name, "exp_avg_sq_row", set);
    EXPECT_TRUE(torch::equal(run.engine->full_optimizer_state(name, "exp_avg_sq_row"), set));
    EXPECT_ERROR(run.engine->set_full_optimizer_state(name, "exp_avg_sq_row", set.narrow(0, 1, 4)), Usage,
                 "shape [30]");
  });
}

}  // namespace
