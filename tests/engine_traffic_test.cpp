// What travels and what is resident, against the plan; delays and deaths.
#include <gtest/gtest.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <csignal>
#include <deque>
#include <random>
#include <thread>

#include "plan/residency_policy.h"
#include "support/meeting.h"
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
    EXPECT_EQ(engine.schedule().size(), 9U) << "the pass is open until the step";
    engine.step();
    // An input that wants no gradient: the first layer's weight is not needed for backward, and not gathered.
    EXPECT_EQ(engine.schedule(), (std::vector<std::string>{"0", "1", "2", "3", "4", "3", "2", "1"}));
  });
}

// One step over the chain in an order of micro-batches such as "FFBFBB"; backwards come in the forwards'
// order (B), or the youngest first (R). Evaluates before every backward where `evaluates`.
void step_in_order(zero::Engine& engine, nn::Sequential& net, int64_t step, std::string_view order,
                   bool evaluates = false) {
  std::deque<Tensor> losses;
  int64_t micro_batch = 0;
  for (const char phase : order) {
    if (phase == 'F') {
      const Tensor x = torch::full({2, 12}, 0.1 * static_cast<double>(1 + step + 7 * micro_batch++));
      losses.push_back(engine.forward([&] { return net->forward(x.requires_grad_()).square().mean(); }));
      continue;
    }
    if (evaluates) {
      const torch::NoGradGuard no_grad;
      engine.forward([&] { return net->forward(torch::ones({1, 12})); });
    }
    engine.backward(phase == 'B' ? losses.front() : losses.back());
    phase == 'B' ? losses.pop_front() : losses.pop_back();
  }
  ASSERT_TRUE(engine.step().stepped);
}

// Fewest all-gathers of a step in that order, by the policy alone.
int64_t gathers_by_policy(const zero::Plan& plan, std::string_view order) {
  zero::ResidencyOptions options{
      .unit_bytes = {}, .budget_bytes = plan.budget_bytes, .prefetch_bytes = plan.prefetch_bytes};
  for (const zero::UnitLayout& unit : plan.units) options.unit_bytes.push_back(unit.slab_bytes());
  zero::ResidencyPolicy policy(options);
  int64_t fetches = 0;
  const auto count = [&](const zero::ResidencyPolicy::Actions& actions) {
    fetches += std::ssize(actions.fetch);
  };
  const int units = static_cast<int>(plan.units.size());
  for (int pass = 0; pass < 2; ++pass) {
    fetches = 0;
    count(policy.begin_pass(zero::ResidencyPolicy::Pass::Train));
    for (const char phase : order) {
      for (int i = 0; i < units; ++i) {
        const int unit = phase == 'F' ? i : units - 1 - i;
        count(policy.touch({&unit, 1}));
      }
      count(policy.trim());
    }
    count(policy.end_pass());
    policy.forget_values();
  }
  return fetches;
}

TEST(Passes, AnyOrderOfMicroBatchesSettles) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    for (const int64_t budget_units : {0, 2, 3, 100}) {
      std::vector<Tensor> expected;
      for (const std::string_view order : {"FBFBFBFB", "FFBFBFBB", "FFFFBBBB", "FFFBRFBR"}) {
        torch::manual_seed(3);
        auto net = chain();
        zero::EngineOptions options{.stage = 3, .accumulation_steps = 4};
        options.share_parameters = false;
        options.budget_bytes = budget_units * 1200;
        zero::Engine engine(*net, zero::AdamW{.lr = 1e-2}, options, mesh);
        const std::string what = std::string(order) + " in " + std::to_string(budget_units) + " units";
        step_in_order(engine, net, 0, order);
        for (int64_t step = 1; step < 4; ++step) {
          const zero::EngineStats before = engine.stats();
          step_in_order(engine, net, step, order, /*evaluates=*/false);
          const zero::EngineStats after = engine.stats();
          EXPECT_EQ(after.recorded_schedules, 1) << what;
          EXPECT_EQ(after.all_gathers - before.all_gathers, gathers_by_policy(engine.plan(), order)) << what;
          if (budget_units == 0) {
            EXPECT_EQ(after.all_gathers - before.all_gathers, 2 * 4 * 5) << what;
          }
          if (budget_units == 100) {
            EXPECT_EQ(after.all_gathers - before.all_gathers, 5) << what;
          }
          const int64_t awaited = after.awaited_all_gathers - before.awaited_all_gathers;
          if (budget_units == 3) {
            EXPECT_LT(awaited, after.all_gathers - before.all_gathers) << what;
          }
          if (budget_units == 100) {
            EXPECT_EQ(awaited, 0) << what << ": all are fetched ahead";
          }
        }
        EXPECT_LE(engine.stats().peak_resident_bytes, engine.plan().rank.gather_window_bytes) << what;
        size_t i = 0;
        for (const std::string& name : engine.parameter_names()) {
          const Tensor value = engine.full_parameter(name);
          if (order.starts_with("FBF")) expected.push_back(value);
          // The same order of backwards is the same order of additions.
          if (order.find('R') == std::string_view::npos)
            EXPECT_TRUE(torch::equal(value, expected[i])) << what << " " << name;
          else
            EXPECT_TRUE(torch::allclose(value, expected[i], 1e-4, 1e-6)) << what << " " << name;
          ++i;
        }
      }
    }
  });
}

TEST(Passes, FrozenUnitsStayOverSteps) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    for (const int64_t budget_units : {0, 1, 2, 3, 4, 100}) {
      auto net = chain();
      for (const size_t frozen : {1, 2, 3})
        for (auto& parameter : net->at<nn::LinearImpl>(frozen).parameters())
          parameter.set_requires_grad(false);
      zero::EngineOptions options{.stage = 3, .accumulation_steps = 2};
      options.share_parameters = false;
      options.budget_bytes = budget_units * 1200;
      zero::Engine engine(*net, zero::AdamW{}, options, mesh);
      train_chain(engine, net, 3, 2);
      const zero::EngineStats before = engine.stats();
      train_chain(engine, net, 1, 2);
      EXPECT_EQ(engine.stats().all_gather_elements - before.all_gather_elements,
                engine.plan().rank.all_gather_elements)
          << budget_units;
      if (budget_units == 100) {
        EXPECT_EQ(engine.stats().all_gathers - before.all_gathers, 2);
      }
    }
  });
}

TEST(Passes, EvaluationsInsideHaveTheirOwnSchedule) {
  run_ranks(2, [](const zero::Mesh& mesh) {
    std::vector<Tensor> results[2];
    for (const bool evaluates : {false, true}) {
      torch::manual_seed(3);
      auto net = chain();
      zero::EngineOptions options{.stage = 3, .accumulation_steps = 2};
      options.share_parameters = false;
      options.budget_bytes = 2400;
      zero::Engine engine(*net, zero::AdamW{.lr = 1e-2}, options, mesh);
      for (int64_t step = 0; step < 3; ++step)
        step_in_order(engine, net, step, "FFBB", evaluates && step != 1);
      EXPECT_EQ(engine.stats().recorded_schedules, 1) << evaluates;
      EXPECT_EQ(engine.schedule().size(), 19U) << evaluates << ": four times five, the turn once";
      for (const std::string& name : engine.parameter_names())
        results[evaluates].push_back(engine.full_parameter(name));
    }
    for (size_t i = 0; i < results[0].size(); ++i)
      EXPECT_TRUE(torch::equal(results[0][i], results[1][i])) << i;
  });
}

TEST(Passes, AnAbandonedPassLeavesNothing) {
  for (const int stage : {0, 2, 3}) {
    run_ranks(2, [stage](const zero::Mesh& mesh) {
      std::vector<Tensor> results[2];
      for (const bool abandons : {false, true}) {
        torch::manual_seed(3);
        auto net = chain();
        zero::EngineOptions options{.stage = stage, .accumulation_steps = 2};
        options.share_parameters = false;
        zero::Engine engine(*net, zero::AdamW{.lr = 1e-2}, options, mesh);
        engine.abandon_pass();  // nothing to abandon
        for (int64_t step = 0; step < 3; ++step) {
          if (abandons && step > 0) {
            const Tensor x = torch::full({2, 12}, 100.0).requires_grad_();
            engine.backward(engine.forward([&] { return net->forward(x).square().mean(); }));
            engine.abandon_pass();
            EXPECT_FALSE(engine.at_boundary());
            EXPECT_FALSE(engine.step().stepped);
          }
          step_in_order(engine, net, step, "FBFB");
        }
        EXPECT_EQ(engine.stats().recorded_schedules, 1);
        for (const std::string& name : engine.parameter_names())
          results[abandons].push_back(engine.full_parameter(name));
      }
      for (size_t i = 0; i < results[0].size(); ++i)
        EXPECT_TRUE(torch::equal(results[0][i], results[1][i])) << stage << " " << i;
    });
  }
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
  rank_options.mesh.timeout = std::chrono::seconds(5);
  const Meeting failed(2);  // who fails first stays, so that the other one may look what it did
  const auto results = collect_ranks(
      2,
      [&](const zero::Mesh& mesh) {
        nn::Sequential net(nn::Linear(8, 8), nn::Linear(8, 8));
        zero::EngineOptions options{.stage = 3};
        options.budget_bytes = 0;
        options.prefetch_bytes = 0;
        options.share_parameters = false;
        zero::Engine engine(*net, zero::AdamW{}, options, mesh);
        try {
          Tensor loss = engine.forward([&] {
            const int first = mesh.rank();
            Tensor x = torch::ones({1, 8});
            x = net->at<nn::LinearImpl>(static_cast<size_t>(first)).forward(x);
            return net->at<nn::LinearImpl>(static_cast<size_t>(1 - first)).forward(x).sum();
          });
          engine.backward(loss);
          engine.step();
        } catch (const zero::Error&) {
          failed.come();
          throw;
        }
      },
      rank_options);
  for (const auto& result : results) {
    EXPECT_EQ(result.exit, 1);
    EXPECT_NE(result.error.find("different things"), std::string::npos) << result.error;
  }
}

// Blocks of a hybrid gather by themselves, so nothing waits: the order is compared before the step.
TEST(Divergence, OrdersOfAHybridsBlocksAreCompared) {
  const auto results = collect_ranks(4, [](const zero::Mesh& mesh) {
    nn::Sequential net(nn::Linear(8, 8), nn::Linear(8, 8));
    zero::EngineOptions options{.stage = 3, .shard_group_ranks = 2};
    options.budget_bytes = 0;
    options.prefetch_bytes = 0;
    options.share_parameters = false;
    zero::Engine engine(*net, zero::AdamW{}, options, mesh);
    for (const bool alike : {true, false}) {
      const size_t first = !alike && mesh.rank() >= 2 ? 1 : 0;
      engine.backward(engine.forward([&] {
        const Tensor x = net->at<nn::LinearImpl>(first).forward(torch::ones({1, 8}));
        return net->at<nn::LinearImpl>(1 - first).forward(x).sum();
      }));
      engine.step();
    }
  });
  for (const auto& result : results) {
    EXPECT_NE(result.error.find("rank 2 gathered 1 where rank 0 gathered 0"), std::string::npos)
        << result.error;
    EXPECT_NE(result.error.find("make all ranks run the same submodules"), std::string::npos) << result.error;
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
