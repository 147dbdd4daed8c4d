// Values, gradients and optimizer states of a parameter by name: what is written is read back, and training
// goes on as if it had always been so, at every stage.
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <map>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using torch::Tensor;

struct Values {
  Values(const zero::Mesh& mesh, zero::EngineOptions options, int seed)
      : engine([&] {
          torch::manual_seed(seed);
          model = SmallNet();
          options.group_numel = 200;
          return std::make_unique<zero::Engine>(*model, zero::AdamW{.lr = 0.02}, options, mesh);
        }()),
        ranks(mesh.size()),
        rank(mesh.rank()) {}
  void backward(int number) {
    const Batch rows = batch_of(number, 2 * ranks).rows(2 * rank, 2);
    engine->backward(engine->forward([&] { return model->loss(rows.tokens, rows.targets); }));
  }
  void step(int number) {
    backward(number);
    EXPECT_FALSE(engine->step().skipped());
  }
  SmallNet model{nullptr};
  std::unique_ptr<zero::Engine> engine;
  int ranks, rank;
};

void expect_local_is_part(const zero::LocalValues& local, const Tensor& full, const std::string& what) {
  const Tensor part = full.flatten().narrow(0, local.begin, local.values.numel());
  EXPECT_TRUE(torch::equal(local.values, part)) << what;
}

TEST(EngineValues, WhatIsWrittenIsWhatTrainingGoesOnWith) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const auto dtype : {zero::Dtype::f32, zero::Dtype::bf16}) {
        const std::string what = "stage " + std::to_string(stage);
        Values from(mesh, {.stage = stage, .dtype = dtype}, 1), to(mesh, {.stage = stage, .dtype = dtype}, 2);
        for (int step = 0; step < 2; ++step) {
          from.step(step);
          to.step(step + 5);
        }
        bool local = false;  // full and local in turn
        for (const std::string& name : from.engine->parameter_names()) {
          const Tensor value = from.engine->full_parameter(name);
          expect_local_is_part(from.engine->local_parameter(name), value, what + name);
          if (local)
            to.engine->set_local_parameter(name, from.engine->local_parameter(name).values);
          else
            to.engine->set_full_parameter(name, value);
          EXPECT_TRUE(torch::equal(to.engine->full_parameter(name), value)) << what << ", " << name;
          for (const std::string kind : {"exp_avg", "exp_avg_sq"}) {
            const Tensor state = from.engine->full_optimizer_state(name, kind);
            const zero::LocalValues part = from.engine->local_optimizer_state(name, kind);
            expect_local_is_part(part, state, what + name);
            if (local)
              to.engine->set_local_optimizer_state(name, kind, part.values);
            else
              to.engine->set_full_optimizer_state(name, kind, state);
          }
          local = !local;
        }
        for (int step = 2; step < 4; ++step) {
          from.step(step);
          to.step(step);
        }
        for (const std::string& name : from.engine->parameter_names())
          EXPECT_TRUE(torch::equal(to.engine->full_parameter(name), from.engine->full_parameter(name)))
              << what << ", " << name;
      }
    }
  });
}

TEST(EngineValues, GradientsThatAreWrittenAreSteppedWith) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    for (const int stage : {0, 3}) {
      Values from(mesh, {.stage = stage}, 1), to(mesh, {.stage = stage}, 1);
      from.backward(0);
      to.backward(7);
      bool local = false;
      for (const std::string& name : from.engine->parameter_names()) {
        const Tensor gradient = from.engine->full_gradient(name);
        const zero::LocalValues part = from.engine->local_gradient(name);
        expect_local_is_part(part, gradient, name);
        if (local)
          to.engine->set_local_gradient(name, part.values);
        else
          to.engine->set_full_gradient(name, gradient);
        EXPECT_TRUE(torch::equal(to.engine->full_gradient(name), gradient)) << name;
        local = !local;
      }
      from.engine->step();
      to.engine->step();
      for (const std::string& name : from.engine->parameter_names())
        EXPECT_TRUE(torch::equal(to.engine->full_parameter(name), from.engine->full_parameter(name))) << name;
    }
  });
}

TEST(EngineValues, RefusesWhatDoesNotFit) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    Values values(mesh, {.stage = 3}, 1);
    zero::Engine& engine = *values.engine;
    const Tensor before = engine.full_parameter("norm.weight");
    EXPECT_ERROR(engine.set_full_parameter("norm.weight", torch::zeros({11})), Usage,
                 "its new values have shape [11], expected [10]");
    EXPECT_ERROR(engine.set_full_parameter("norm.wait", torch::zeros({10})), Usage, "no such parameter");
    EXPECT_ERROR(engine.set_full_parameter("norm.weight", torch::zeros({10}, torch::kLong)), Usage,
                 "not floating-point");
    EXPECT_ERROR(engine.set_full_optimizer_state("norm.weight", "exp_max", torch::zeros({10})), Usage,
                 "no optimizer state 'exp_max'");
    EXPECT_ERROR(engine.set_full_gradient("norm.weight", torch::zeros({10})), Usage,
                 "between the last backward() and step()");
    const int64_t mine = engine.local_parameter("norm.weight").values.numel();
    EXPECT_ERROR(engine.set_local_parameter("norm.weight", torch::zeros({mine + 1})), Usage,
                 "what this rank holds of it");
    values.backward(0);
    EXPECT_ERROR(engine.set_full_parameter("norm.weight", torch::zeros({10})), Usage,
                 "in the middle of a step");
    engine.abandon_pass();
    EXPECT_TRUE(torch::equal(engine.full_parameter("norm.weight"), before));
  });
}

}  // namespace
