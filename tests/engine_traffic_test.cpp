// What travels and what is resident, against the plan; delays and deaths.
#include <gtest/gtest.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <csignal>
#include <random>
#include <thread>

#include "support/ranks.h"
#include "support/small_net.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/lazy.h"

namespace {
using namespace zero::testing;
using torch::Tensor;
namespace nn = torch::nn;

// A chain without reuse: each unit is touched once forward and once backward.
nn::Sequential chain() {
  nn::Sequential net;
  for (int i = 0; i < 5; ++i) net->push_back(nn::Linear(12 + i, 13 + i));
  return net;
}

void train_chain(zero::Engine& engine, nn::Sequential& net, int steps, int accumulation,
                 const std::function<void(int)>& delay = {}) {
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < accumulation; ++i) {
      if (delay) delay(2 * i);
      Tensor loss = engine.forward([&] {
        return net->forward(torch::ones({2, 12}).requires_grad_()).square().mean();
      });
      if (delay) delay(2 * i + 1);
      engine.backward(loss);
    }
    engine.step();
  }
}

TEST(Traffic, EqualsThePlanForEveryStage) {
  run_ranks(4, [](const zero::Mesh& mesh) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (int accumulation : {1, 3}) {
        for (int group : {0, 2}) {
          if (stage == 0 && group != 0) continue;
          // The last: in memory that the ranks share, whatever the budget.
          for (int64_t budget : {int64_t{0}, int64_t{-1}, int64_t{1} << 40, int64_t{1}}) {
            auto net = chain();
            zero::EngineOptions options{.stage = stage, .accumulation_steps = accumulation};
            options.shard_group_ranks = group;
            options.budget_bytes = budget;
            options.share_parameters = budget == 1;
            zero::Engine engine(*net, zero::AdamW{}, options, mesh);
            train_chain(engine, net, 2, accumulation);
            const zero::EngineStats before = engine.stats();
            train_chain(engine, net, 1, accumulation);
            const zero::EngineStats after = engine.stats();
            const zero::RankPlan& plan = engine.plan().rank;
            const std::string what = "stage " + std::to_string(stage) + " accumulation " +
                                     std::to_string(accumulation) + " group " + std::to_string(group) +
                                     " budget " + std::to_string(budget);
            EXPECT_EQ(after.all_gather_elements - before.all_gather_elements, plan.all_gather_elements)
                << what;
            EXPECT_EQ(after.reduce_scatter_elements - before.reduce_scatter_elements,
                      plan.reduce_scatter_elements)
                << what;
            EXPECT_NEAR(static_cast<double>(after.all_reduce_elements - before.all_reduce_elements),
                        static_cast<double>(plan.all_reduce_elements), 8 * 5 * 2)
                << what;
            EXPECT_LE(after.peak_resident_bytes, plan.gather_window_bytes) << what;
            if (accumulation == 1 && group == 0) {
              int64_t elements = 0;
              for (const auto& p : net->parameters()) elements += p.numel();
              const int64_t traffic =
                  after.traffic_elements() - before.traffic_elements() - plan.padding_elements;
              const bool sharded = engine.plan().placements.parameter == zero::Placement::Shard;
              EXPECT_EQ(sharded, stage == 3 && budget != 1) << what;
              const int64_t most = (sharded ? 3 : 2) * elements;
              EXPECT_LE(traffic, most) << what;
              EXPECT_EQ(traffic == most, !sharded || budget == 0) << what;
            }
          }
        }
      }
    }
  });
}

TEST(Traffic, WorldOfOneSendsNothing) {
  run_ranks(1, [](const zero::Mesh& mesh) {
    auto net = chain();
    zero::Engine engine(*net, zero::AdamW{}, {.stage = 3}, mesh);
    train_chain(engine, net, 2, 1);
    EXPECT_EQ(engine.stats().traffic_elements(), 0);
    EXPECT_EQ(engine.stats().peak_resident_bytes, 0);
  });
}

TEST(Traffic, ScheduleIsForwardThenBackward) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    auto net = chain();
    zero::Engine engine(*net, zero::AdamW{}, {.stage = 3}, mesh);
    train_chain(engine, net, 1, 1);
    EXPECT_EQ(engine.schedule(), (std::vector<std::string>{"0", "1", "2", "3", "4", "3", "2", "1", "0"}));
    engine.backward(engine.forward([&] { return net->forward(torch::ones({2, 12})).sum(); }));
    // An input that wants no gradient: the first layer's weight is not needed for backward, and not gathered.
    EXPECT_EQ(engine.schedule(), (std::vector<std::string>{"0", "1", "2", "3", "4", "3", "2", "1"}));
  });
}

TEST(Delays, ChangeNothing) {
  run_ranks(3, [](const zero::Mesh& mesh) {
    for (int stage : {0, 1, 2, 3}) {
      std::vector<Tensor> results[2];
      for (int delayed = 0; delayed < 2; ++delayed) {
        torch::manual_seed(5);
        SmallNet model = zero::lazily([] { return SmallNet(); });
        zero::EngineOptions options{.stage = stage, .accumulation_steps = 2};
        options.budget_bytes = 4000;
        options.share_parameters = stage != 3;
        options.reduce_bucket_numel = 400;
        zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, options, mesh);
        std::mt19937 random(static_cast<unsigned>(mesh.rank()));
        auto delay = [&] {
          if (delayed) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
        };
        for (int step = 0; step < 5; ++step) {
          for (int i = 0; i < 2; ++i) {
            Batch batch = batch_of(2 * step + i, 3).rows(mesh.rank(), 1);
            delay();
            Tensor loss = engine.forward([&] {
              Tensor x = model->embedding(batch.tokens);
              for (const auto& layer : *model->layers) {
                delay();
                x = layer->as<BlockImpl>()->forward(x);
              }
              return torch::nn::functional::linear(model->norm(x), model->embedding->weight).square().mean();
            });
            delay();
            engine.backward(loss);
          }
          delay();
          engine.step();
        }
        for (const std::string& name : engine.parameter_names())
          results[delayed].push_back(engine.full_parameter(name));
      }
      for (size_t i = 0; i < results[0].size(); ++i)
        EXPECT_TRUE(torch::equal(results[0][i], results[1][i])) << stage << " " << i;
    }
  });
}

TEST(Deaths, OthersFailWithTheRanksNumber) {
  for (int stage : {0, 3}) {
    RankOptions options;
    options.mesh.timeout = std::chrono::seconds(20);
    const auto results = collect_ranks(
        3,
        [stage](const zero::Mesh& mesh) {
          auto net = chain();
          zero::Engine engine(*net, zero::AdamW{}, {.stage = stage}, mesh);
          train_chain(engine, net, 50, 1, [&](int) {
            if (mesh.rank() == 1 && engine.stats().steps == 3) std::raise(SIGKILL);
          });
        },
        options);
    EXPECT_EQ(results[1].exit, 128 + SIGKILL);
    for (int rank : {0, 2}) {
      EXPECT_EQ(results[static_cast<size_t>(rank)].exit, 1);
      EXPECT_NE(results[static_cast<size_t>(rank)].error.find("rank 1"), std::string::npos)
          << results[static_cast<size_t>(rank)].error;
    }
  }
}

TEST(Deaths, AFailingForwardIsQuotedByTheOthers) {
  const auto results = collect_ranks(2, [](const zero::Mesh& mesh) {
    auto net = chain();
    zero::Engine engine(*net, zero::AdamW{}, {.stage = 3}, mesh);
    train_chain(engine, net, 5, 1, [&](int) {
      if (mesh.rank() == 1 && engine.stats().steps == 2)
        engine.forward([]() -> int { throw std::runtime_error("out of apples"); });
    });
  });
  EXPECT_NE(results[1].error.find("out of apples"), std::string::npos) << results[1].error;
  EXPECT_NE(results[0].error.find("out of apples"), std::string::npos) << results[0].error;
}

TEST(Divergence, DifferentOrdersAreNamed) {
  // Two layers of one size: only their names can tell the gathers apart.
  RankOptions rank_options;
  rank_options.mesh.timeout = std::chrono::seconds(3);
  const auto results = collect_ranks(
      2,
      [](const zero::Mesh& mesh) {
        nn::Sequential net(nn::Linear(8, 8), nn::Linear(8, 8));
        zero::EngineOptions options{.stage = 3};
        options.budget_bytes = 0;
        options.prefetch_bytes = 0;
        options.share_parameters = false;
        zero::Engine engine(*net, zero::AdamW{}, options, mesh);
        Tensor loss = engine.forward([&] {
          const int first = mesh.rank();
          Tensor x = torch::ones({1, 8});
          x = net->at<nn::LinearImpl>(static_cast<size_t>(first)).forward(x);
          return net->at<nn::LinearImpl>(static_cast<size_t>(1 - first)).forward(x).sum();
        });
        engine.backward(loss);
        engine.step();
      },
      rank_options);
  for (const auto& result : results) {
    EXPECT_EQ(result.exit, 1);
    EXPECT_NE(result.error.find("different things"), std::string::npos) << result.error;
  }
}

// Random modules, random options: the engine holds what the plan says and trains like stage 0.
TEST(Property, RandomModulesAndPlans) {
  run_ranks(3, [](const zero::Mesh& mesh) {
    std::mt19937 random(77);
    auto pick = [&](int64_t low, int64_t high) {
      return low + static_cast<int64_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    for (int trial = 0; trial < 12; ++trial) {
      const auto blocks = static_cast<int>(pick(0, 4));
      const int64_t width = pick(1, 17), vocabulary = pick(5, 40);
      zero::EngineOptions options{.stage = 0, .accumulation_steps = static_cast<int>(pick(1, 3))};
      options.group_numel = pick(1, 500);
      options.reduce_bucket_numel = pick(1, 800);
      options.prefetch_bytes = pick(0, 5000);
      options.overlap = pick(0, 1) == 1;
      options.share_parameters = pick(0, 2) == 2;
      const auto stage = static_cast<int>(pick(1, 3));
      const int64_t budget = pick(0, 8000);
      std::vector<Tensor> expected;
      for (int variant = 0; variant < 2; ++variant) {
        zero::EngineOptions chosen = options;
        if (variant == 1) {
          chosen.stage = stage;
          chosen.budget_bytes = budget;
        }
        torch::manual_seed(trial);
        SmallNet model = zero::lazily([&] { return SmallNet(vocabulary, width, blocks); });
        zero::Engine engine(*model, zero::AdamW{.lr = 1e-2}, chosen, mesh);
        for (int step = 0; step < 3; ++step) {
          for (int i = 0; i < chosen.accumulation_steps; ++i) {
            Batch batch = batch_of(10 * step + i, 3, vocabulary).rows(mesh.rank(), 1);
            engine.backward(engine.forward([&] { return model->loss(batch.tokens, batch.targets); }));
          }
          engine.step();
        }
        if (chosen.stage == 3) {
          EXPECT_LE(engine.stats().peak_resident_bytes, engine.plan().rank.gather_window_bytes) << trial;
        }
        std::vector<Tensor> got;
        for (const std::string& name : engine.parameter_names()) got.push_back(engine.full_parameter(name));
        if (variant == 0) expected = got;
        for (size_t i = 0; i < got.size(); ++i)
          EXPECT_TRUE(torch::allclose(got[i], expected[i], 1e-5, 1e-7)) << trial << " " << i;
      }
    }
  });
}
}  // namespace
