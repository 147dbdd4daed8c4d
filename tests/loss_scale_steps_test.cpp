// Loss scaling at its least scale, and along all axes of a mesh.
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "support/cut_net.h"
#include "support/expect_error.h"
#include "support/meeting.h"
#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"

namespace {
using namespace zero::testing;
using AtMinimum = zero::LossScaling::AtMinimum;

// Three overflows in a row, then steps as if they had not been.
TEST(LossScaleSteps, AtTheLeastScaleAStepIsSkippedOrTheScaleFalls) {
  for (const AtMinimum policy : {AtMinimum::Skip, AtMinimum::Continue})
    run_ranks(2, [policy](const zero::Mesh& mesh) {
      const zero::LrSchedule schedule(zero::LinearLr{.warmup_steps = 3, .total_steps = 9});
      zero::EngineOptions options{.stage = 2, .schedule = schedule};
      torch::manual_seed(5);
      SmallNet model, plain_model;
      torch::manual_seed(5);
      plain_model = SmallNet();
      torch::manual_seed(5);
      model = SmallNet();
      zero::Engine plain(*plain_model, zero::AdamW{.lr = 0.02}, options, mesh);
      options.loss_scaling =
          zero::LossScaling{.initial_scale_power = 1, .hysteresis = 1, .min_scale = 1, .at_minimum = policy};
      zero::Engine engine(*model, zero::AdamW{.lr = 0.02}, options, mesh);
      const auto step = [&](zero::Engine& of, SmallNet& net, int number, double factor) {
        const Batch rows = batch_of(number, 2 * mesh.size()).rows(2 * mesh.rank(), 2);
        of.backward(of.forward([&] { return net->loss(rows.tokens, rows.targets); }) * factor);
        return of.step();
      };
      for (int number = 0; number < 2; ++number) {
        step(plain, plain_model, number, 1);
        step(engine, model, number, 1);
      }
      const double infinite = std::numeric_limits<double>::infinity();
      std::vector<double> scales;
      for (int number = 0; number < 3; ++number) {
        const zero::StepResult result = step(engine, model, 7, mesh.rank() == 0 ? infinite : 1);
        EXPECT_TRUE(result.skipped());
        scales.push_back(result.loss_scale);
      }
      EXPECT_EQ(scales, policy == AtMinimum::Skip ? (std::vector<double>{2, 1, 1})
                                                  : (std::vector<double>{2, 1, 0.5}));
      for (int number = 2; number < 4; ++number) {
        EXPECT_EQ(step(engine, model, number, 1).lr, step(plain, plain_model, number, 1).lr);
      }
      EXPECT_EQ(engine.stats().skipped_steps, 3);
      EXPECT_EQ(engine.stats().steps, 4);
      for (const std::string& name : engine.parameter_names())
        EXPECT_TRUE(torch::equal(engine.full_parameter(name), plain.full_parameter(name))) << name;
    });
}

TEST(LossScaleSteps, AnOverflowAlongAnyAxisIsEveryRanks) {
  run_ranks(
      4,
      [](const zero::Mesh& mesh) {
        const zero::Group dp = mesh.group("dp"), tp = mesh.group("tp");
        CutNet net(tp.rank(), 2);
        zero::EngineOptions options{.stage = 2, .parts = parts_of(net)};
        options.loss_scaling = zero::LossScaling{.initial_scale_power = 3, .hysteresis = 1};
        zero::Engine engine(*net, zero::AdamW{.lr = 0.05}, options, mesh);
        bool infinite = true;
        if (dp.rank() == 1 && tp.rank() == 1)
          net->weight.register_hook([&](const at::Tensor& gradient) {
            return infinite ? gradient * std::numeric_limits<float>::infinity() : gradient;
          });
        const auto sum_over_tp = [&](const at::Tensor& tensor) {
          tp.all_reduce(tensor, zero::Group::Reduce::Sum, "activations").wait();
        };
        for (const bool skips : {true, false}) {
          infinite = skips;
          const at::Tensor x = CutNetImpl::batch(0).narrow(0, 2 * dp.rank(), 2);
          engine.backward(engine.forward([&] { return net->loss(x, sum_over_tp); }));
          const zero::StepResult result = engine.step();
          EXPECT_EQ(result.skipped(), skips);
          EXPECT_EQ(result.loss_scale, skips ? 8 : 4);
          if (skips) {
            EXPECT_TRUE(result.overflow().starts_with("weight on rank ")) << result.overflow();
          }
        }
        EXPECT_EQ(engine.stats().skipped_steps, 1);
        EXPECT_EQ(engine.stats().steps, 1);
      },
      two_by_two());
}

}  // namespace
