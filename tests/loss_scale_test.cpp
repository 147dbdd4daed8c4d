// Loss scales against DeepSpeed's and torch's recorded ones, and in the engine: in fp32 they change no bit, a
// step that overflows anywhere has never been, and a checkpoint goes on where it was.
#include "zero/loss_scale.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "support/temporary_directory.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using torch::Tensor;
using zero::LossScaler;
using zero::LossScaling;
using ScaleJson = nlohmann::json;

LossScaling scaling_of(const ScaleJson& one) {
  const auto& options = one["options"];
  LossScaling scaling;
  if (one["rule"] == "GradScaler") scaling.rule = LossScaling::Rule::GradScaler;
  scaling.initial_scale_power = options["initial_scale_power"];
  if (options.contains("window")) scaling.window = options["window"];
  scaling.hysteresis = options.value("hysteresis", 2);
  scaling.consecutive_hysteresis = options.value("consecutive_hysteresis", false);
  if (options.contains("min_scale")) scaling.min_scale = options["min_scale"];
  return scaling;
}

TEST(LossScale, MovesAsDeepSpeedsAndTorchs) {
  std::ifstream file(std::string(ZERO_TEST_DATA) + "/golden/loss_scale.json");
  ASSERT_TRUE(file);
  const ScaleJson golden = ScaleJson::parse(file);
  ASSERT_GE(golden["cases"].size(), 9U);
  for (const auto& one : golden["cases"]) {
    LossScaler scaler(scaling_of(one));
    const std::vector<int> overflows = one["overflows"];
    double expected = 0;
    size_t change = 0;
    for (int step = 0; step < one["steps"].get<int>(); ++step) {
      if (change < one["changes"].size() && one["changes"][change][0] == step)
        expected = one["changes"][change++][1];
      ASSERT_EQ(scaler.scale(), expected) << one["options"].dump() << ", step " << step;
      const bool overflow = std::find(overflows.begin(), overflows.end(), step) != overflows.end();
      if (one["raises"] == step)
        EXPECT_ERROR(scaler.update(overflow), Usage, "the least that is allowed");
      else
        scaler.update(overflow);
    }
    EXPECT_EQ(change, one["changes"].size());
  }
}

TEST(LossScale, StopsStaysOrFallsAtItsLeast) {
  LossScaling scaling{.initial_scale_power = 1, .hysteresis = 1};
  scaling.at_minimum = LossScaling::AtMinimum::Skip;
  LossScaler stays(scaling);
  scaling.at_minimum = LossScaling::AtMinimum::Continue;
  LossScaler falls(scaling);
  for (int i = 0; i < 3; ++i) {
    stays.update(true);
    falls.update(true);
  }
  EXPECT_EQ(stays.scale(), 1);
  EXPECT_EQ(falls.scale(), 0.25);
  LossScaler fixed({.fixed_scale = 128});
  for (const bool overflow : {true, true, false}) fixed.update(overflow);
  EXPECT_EQ(fixed.scale(), 128);
  EXPECT_EQ(fixed.state().steps, 3);
}

TEST(LossScale, RefusesWhatIsOutOfRange) {
  EXPECT_ERROR(LossScaler({.fixed_scale = -1}), Config, "fixed_scale is -1");
  EXPECT_ERROR(LossScaler({.initial_scale_power = 200}), Config, "initial_scale_power is 200");
  EXPECT_ERROR(LossScaler({.window = 0}), Config, "window is 0");
  EXPECT_ERROR(LossScaler({.hysteresis = 0}), Config, "hysteresis is 0");
}

constexpr int64_t kRows = 2;

struct Training {
  Training(const zero::Mesh& job, zero::EngineOptions options) : mesh(job) {
    torch::manual_seed(5);
    model = SmallNet();
    options.reduce_bucket_numel = 500;
    options.group_numel = 200;
    engine = std::make_unique<zero::Engine>(*model, zero::AdamW{.lr = 0.02, .weight_decay = 0.1},
                                            std::move(options), mesh);
  }
  // `factor`: of this rank's loss.
  zero::StepResult step(int number, double factor = 1) {
    const Batch rows = batch_of(number, kRows * mesh.size()).rows(mesh.rank() * kRows, kRows);
    const Tensor loss = engine->forward([&] { return model->loss(rows.tokens, rows.targets); });
    last_loss = loss.item<double>();
    engine->backward(factor == 1 ? loss : loss * factor);
    return engine->step();
  }
  std::map<std::string, Tensor> values() {
    std::map<std::string, Tensor> all;
    for (const std::string& name : engine->parameter_names()) all[name] = engine->full_parameter(name);
    return all;
  }
  zero::Mesh mesh;
  SmallNet model{nullptr};
  std::unique_ptr<zero::Engine> engine;
  double last_loss = 0;
};

void expect_equal(const std::map<std::string, Tensor>& a, const std::map<std::string, Tensor>& b,
                  const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) EXPECT_TRUE(torch::equal(values, b.at(name))) << what << ", " << name;
}

TEST(LossScaleEngine, APowerOfTwoChangesNoBitInFp32) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    for (const int stage : {0, 1, 2, 3}) {
      zero::EngineOptions options{.stage = stage, .gradient_clipping = 0.5};
      Training plain(mesh, options);
      options.loss_scaling = LossScaling{.window = 2};
      Training scaled(mesh, options);
      for (int step = 0; step < 6; ++step) {
        const zero::StepResult without = plain.step(step), with = scaled.step(step);
        EXPECT_EQ(with.clip().norm_before, without.clip().norm_before);
        EXPECT_EQ(with.loss_scale, std::ldexp(1.0, 16 + std::max(0, (step - 1) / 2)));
        EXPECT_EQ(without.loss_scale, 1);
      }
      expect_equal(scaled.values(), plain.values(), "stage " + std::to_string(stage));
    }
  });
}

TEST(LossScaleEngine, AStepThatOverflowsOnOneRankHasNeverBeen) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    const zero::LrSchedule schedule(zero::LinearLr{.warmup_steps = 3, .total_steps = 9});
    zero::EngineOptions options{.stage = 2, .schedule = schedule};
    Training plain(mesh, options);
    options.loss_scaling = LossScaling{.initial_scale_power = 4, .hysteresis = 1};
    Training scaled(mesh, options);
    for (int step = 0; step < 5; ++step) {
      plain.step(step);
      if (step == 2) {
        const bool here = mesh.rank() == 1;
        const zero::StepResult skipped = scaled.step(9, here ? std::numeric_limits<double>::infinity() : 1.0);
        EXPECT_TRUE(skipped.skipped());
        EXPECT_EQ(skipped.loss_scale, 16);
        // Which of them is first depends on the model alone; some rank holds it.
        const std::string first = scaled.engine->parameter_names().front();
        EXPECT_EQ(skipped.overflow().substr(0, first.size()), first) << skipped.overflow();
        EXPECT_NE(skipped.overflow().find(" on rank "), std::string::npos) << skipped.overflow();
      }
      const zero::StepResult taken = scaled.step(step);
      EXPECT_FALSE(taken.skipped());
      EXPECT_EQ(taken.overflow(), "");
      EXPECT_EQ(taken.loss_scale, step < 2 ? 16 : 8);
    }
    EXPECT_EQ(scaled.engine->stats().steps, 5);
    EXPECT_EQ(scaled.engine->stats().skipped_steps, 1);
    expect_equal(scaled.values(), plain.values(), "after a skipped step");
  });
}

TEST(LossScaleEngine, TrainsInFp16AtEveryStage) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    std::map<std::string, Tensor> first;
    for (const int stage : {0, 1, 2, 3}) {
      Training training(mesh, {.stage = stage,
                               .dtype = zero::Dtype::f16,
                               .loss_scaling = LossScaling{.initial_scale_power = 10, .window = 4}});
      Training exact(mesh, {.stage = stage});
      double before = 0;
      for (int step = 0; step < 8; ++step) {
        EXPECT_FALSE(training.step(0).skipped());
        if (step == 0) before = training.last_loss;
        exact.step(0);
        EXPECT_NEAR(training.last_loss, exact.last_loss, 0.02 * exact.last_loss) << step;
      }
      EXPECT_LT(training.last_loss, 0.9 * before);
      const auto values = training.values();
      bool is_finer = false;  // masters hold more than fp16
      for (const auto& [name, value] : values)
        is_finer = is_finer || !torch::equal(value, value.to(torch::kHalf).to(torch::kFloat));
      EXPECT_TRUE(is_finer);
      if (stage == 0) first = values;
      expect_equal(values, first, "stage " + std::to_string(stage));
    }
  });
}

TEST(LossScaleEngine, ResumesScaleAndCountersBitForBit) {
  const TemporaryDirectory directory;
  run_ranks(2, [&](const zero::Mesh& mesh) {
    const zero::EngineOptions options{.stage = 3,
                                      .dtype = zero::Dtype::f16,
                                      .loss_scaling = LossScaling{.initial_scale_power = 8, .window = 3}};
    const double infinite = std::numeric_limits<double>::infinity();
    Training through(mesh, options);
    for (int step = 0; step < 4; ++step) through.step(step);
    through.step(4, infinite);
    const auto checkpoint = through.engine->save(directory.path());
    const auto rest = [&](Training& training) {
      std::vector<double> scales;
      for (int step = 5; step < 12; ++step)
        scales.push_back(training.step(step, step == 6 ? infinite : 1).loss_scale);
      return scales;
    };
    const std::vector<double> scales = rest(through);
    Training resumed(mesh, options);
    resumed.engine->load(checkpoint);
    EXPECT_EQ(rest(resumed), scales);
    EXPECT_EQ(scales, (std::vector<double>{512, 512, 256, 256, 256, 256, 512}));
    EXPECT_EQ(resumed.engine->stats().skipped_steps, 2);
    expect_equal(resumed.values(), through.values(), "resumed");
  });
}

TEST(LossScaleEngine, StopsAtTheLeastScaleOnAllRanks) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    Training training(mesh,
                      {.stage = 2, .loss_scaling = LossScaling{.initial_scale_power = 0, .hysteresis = 1}});
    const auto before = training.values();
    EXPECT_ERROR(training.step(0, mesh.rank() == 0 ? std::nan("") : 1.0), Usage,
                 "gradients are not finite although the loss scale is 1");
    expect_equal(training.values(), before, "after the error");
  });
}

TEST(LossScaleEngine, Fp16WithoutScalingIsRefused) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    EXPECT_ERROR(Training(mesh, {.dtype = zero::Dtype::f16}), Unsupported,
                 "training in fp16 needs loss scaling");
  });
}

// Sequences of different lengths and ignored labels: each label counts once, wherever it is.
TEST(LossWeights, EveryLabelCountsOnceOverRanksAndMicroBatches) {
  const int64_t ranks = 3, micro_batches = 2;
  run_ranks(static_cast<int>(ranks), [&](const zero::Mesh& mesh) {
    const auto labels_of = [](int step, int64_t part, const Batch& rows) {
      Tensor targets = rows.targets.clone();
      for (int64_t i = 0; i < targets.numel(); ++i)
        if ((i * 7 + part * 3 + step) % (part + 2) != 0) targets.view({-1})[i] = -100;
      return targets;
    };
    const auto sum_of = [](SmallNet& net, const Tensor& tokens, const Tensor& targets) {
      return torch::nn::functional::cross_entropy(
          net->forward(tokens).flatten(0, -2).to(torch::kFloat), targets.flatten(),
          torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
    };
    const auto count_of = [](const Tensor& targets) { return targets.ne(-100).sum().item<double>(); };
    torch::manual_seed(5);
    SmallNet whole;
    torch::optim::SGD plain(whole->parameters(), torch::optim::SGDOptions(0.3));
    for (const int stage : {0, 3}) {
      torch::manual_seed(5);
      SmallNet model;
      zero::Engine engine(*model, zero::SGD{.lr = 0.3},
                          {.stage = stage,
                           .accumulation_steps = static_cast<int>(micro_batches),
                           .loss_scaling = LossScaling{}},
                          mesh);
      for (int step = 0; step < 3; ++step) {
        // Rank 2 is out of data in the second half of each step.
        const auto has_data = [](int64_t rank, int64_t micro) { return rank != 2 || micro == 0; };
        const Batch all = batch_of(step, ranks * micro_batches);
        if (stage == 0) {
          plain.zero_grad();
          Tensor sum = torch::zeros({});
          double count = 0;
          for (int64_t part = 0; part < ranks * micro_batches; ++part) {
            if (!has_data(part % ranks, part / ranks)) continue;
            const Batch rows = all.rows(part, 1);
            const Tensor targets = labels_of(step, part, rows);
            sum = sum + sum_of(whole, rows.tokens, targets);
            count += count_of(targets);
          }
          (sum / count).backward();
          plain.step();
        }
        for (int64_t micro = 0; micro < micro_batches; ++micro) {
          const int64_t part = micro * ranks + mesh.rank();
          const Batch rows = all.rows(part, 1);
          const Tensor targets = labels_of(step, part, rows);
          const Tensor loss = engine.forward([&] { return sum_of(model, rows.tokens, targets); });
          engine.backward_sum(loss, has_data(mesh.rank(), micro) ? count_of(targets) : 0);
        }
        EXPECT_FALSE(engine.step().skipped());
      }
      for (const auto& item : whole->named_parameters())
        EXPECT_TRUE(torch::allclose(engine.full_parameter(item.key()), item.value().detach(), 1e-4, 1e-6))
            << item.key() << " at stage " << stage;
    }
  });
}

// Rank 1 has a batch fewer: it leaves, or gathers what it has trained.
TEST(LossWeights, RanksWithDifferentNumbersOfBatchesAreToldWhatToDo) {
  for (const bool leaves : {true, false}) {
    RankOptions options;
    options.mesh.timeout = std::chrono::seconds(4);
    const auto results = collect_ranks(
        2,
        [&](const zero::Mesh& mesh) {
          Training training(mesh, {.stage = 3});
          for (int batch = 0; batch < 3 - mesh.rank(); ++batch) {
            const Batch rows = batch_of(batch, 2);
            training.engine->backward(
                training.engine->forward([&] { return training.model->loss(rows.tokens, rows.targets); }));
            training.engine->step();
          }
          if (mesh.rank() == 1 && leaves) _exit(0);
          training.engine->full_parameter(training.engine->parameter_names().front());
        },
        options);
    const std::string& told = results[0].error;
    EXPECT_NE(told.find("rank 1"), std::string::npos) << told;
    EXPECT_NE(told.find("for the same number of batches"), std::string::npos) << told;
    EXPECT_NE(told.find("Engine::backward_sum(loss, 0)"), std::string::npos) << told;
    EXPECT_EQ(told.find('\n'), std::string::npos) << told;
  }
}

TEST(LossWeights, NoWeightAtAllAndMixturesAreRefused) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    Training training(mesh, {.stage = 1, .accumulation_steps = 2});
    const Batch rows = batch_of(0, 2);
    const auto loss = [&] {
      return training.engine->forward([&] { return training.model->loss(rows.tokens, rows.targets); });
    };
    training.engine->backward_sum(loss(), 0);
    EXPECT_ERROR(training.engine->backward(loss()), Usage, "this step has losses that are sums");
    EXPECT_ERROR(training.engine->backward_sum(loss(), -1), Usage, "weight is -1");
    EXPECT_ERROR(training.engine->backward_sum(loss(), 0), Usage, "no weight on any rank");
    training.engine->abandon_pass();
    training.engine->backward(loss());
    EXPECT_ERROR(training.engine->backward_sum(loss(), 1), Usage, "this step has losses that are means");
  });
}

}  // namespace
