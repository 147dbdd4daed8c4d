// torch::optim optimizers on shards: the same bits as on ordinary parameters.
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "support/expect_error.h"
#include "support/optimizer_model.h"

namespace zero {
namespace {

namespace to = torch::optim;
using testing::OptimizerModel;
using Groups = std::vector<to::OptimizerParamGroup>;

constexpr double kGradientScale = 0.125;

struct Case {
  const char* name;
  TorchOptimizer spec;
  std::vector<std::string> states;
};

template <class Optimizer, class Options>
Case make_case(const char* name, Options options, std::vector<std::string> states) {
  return {name,
          {[options](Groups groups) { return std::make_unique<Optimizer>(std::move(groups), options); }},
          states};
}

std::vector<Case> known_cases() {
  return {
      make_case<to::AdamW>("AdamW", to::AdamWOptions(0.02), {"exp_avg", "exp_avg_sq"}),
      make_case<to::Adam>("Adam amsgrad", to::AdamOptions(0.02).amsgrad(true),
                          {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
      make_case<to::SGD>("SGD", to::SGDOptions(0.02), {}),
      make_case<to::SGD>("SGD momentum", to::SGDOptions(0.02).momentum(0.9).dampening(0.2),
                         {"momentum_buffer"}),
      make_case<to::RMSprop>("RMSprop", to::RMSpropOptions(0.02), {"square_avg"}),
      make_case<to::RMSprop>("RMSprop centered", to::RMSpropOptions(0.02).momentum(0.9).centered(true),
                             {"square_avg", "momentum_buffer", "grad_avg"}),
      make_case<to::Adagrad>("Adagrad", to::AdagradOptions(0.02).lr_decay(0.1).initial_accumulator_value(0.5),
                             {"sum"}),
  };
}

void step_both(OptimizerModel& model, ShardOptimizer& optimizer, to::Optimizer* plain, int step) {
  model.used[1] = step % 5 != 2;
  model.used[3] = step > 1;
  model.set_gradients(step, kGradientScale);
  const double lr = 0.02 / (1 + step);
  optimizer.step({.gradient_scale = kGradientScale, .lr = lr, .used = model.used});
  if (!plain) return;
  for (auto& group : plain->param_groups()) group.options().set_lr(lr);
  plain->step();
}

TEST(TorchOptimizer, GivesTheBitsOfOrdinaryParameters) {
  for (const auto& one : known_cases()) {
    SCOPED_TRACE(one.name);
    OptimizerModel model(at::kBFloat16);
    const auto optimizer = make_test_optimizer(one.spec, {}, model.shards, OptimizerModel::kParameters);
    std::vector<at::Tensor> leaves(model.plain.begin(), model.plain.end() - 1);  // the last is empty
    Groups groups;
    groups.emplace_back(leaves);
    const auto plain = one.spec.make(std::move(groups));
    for (int step = 0; step < 10; ++step) {
      step_both(model, *optimizer, plain.get(), step);
      ASSERT_EQ(model.distance(), 0) << "step " << step;
    }
    for (const auto& shard : model.shards)
      EXPECT_TRUE(at::equal(shard.parameter, shard.master.to(at::kBFloat16)));
    EXPECT_EQ(optimizer->parameter_steps(), (std::vector<int64_t>{10, 8, 10, 8, 10}));
  }
}

TEST(TorchOptimizer, StateIsNamedCountedAndRestoresBitForBit) {
  for (const auto& one : known_cases()) {
    SCOPED_TRACE(one.name);
    EXPECT_EQ(optimizer_state_bytes(one.spec), static_cast<int64_t>(4 * one.states.size()));
    EXPECT_EQ(base_lr(one.spec), 0.02);
    OptimizerModel straight, resumed;
    const auto first = make_test_optimizer(one.spec, {}, straight.shards, OptimizerModel::kParameters);
    for (int step = 0; step < 4; ++step) step_both(straight, *first, nullptr, step);
    const auto second = make_test_optimizer(one.spec, {}, resumed.shards, OptimizerModel::kParameters);
    step_both(resumed, *second, nullptr, 17);  // what is loaded must replace what is there
    const auto from = first.state();
    ASSERT_EQ(from.size(), 2 * one.states.size());
    for (size_t i = 0; i < from.size(); ++i) {
      EXPECT_EQ(from[i].name, one.states[i % one.states.size()]);
      EXPECT_GT(from[i].values.count_nonzero().item<int64_t>(), 0);
    }
    for (size_t s = 0; s < 2; ++s) resumed.shards[s].master.copy_(straight.shards[s].master);
    second->set_parameter_steps(first->parameter_steps());
    second.set_state(from);
    for (int step = 4; step < 8; ++step) {
      step_both(straight, *first, nullptr, step);
      step_both(resumed, *second, nullptr, step);
    }
    for (size_t s = 0; s < 2; ++s)
      EXPECT_TRUE(at::equal(straight.shards[s].master, resumed.shards[s].master));
    const auto expected = first.state(), actual = second.state();
    for (size_t i = 0; i < from.size(); ++i)
      EXPECT_TRUE(at::equal(actual[i].values, expected[i].values)) << from[i].name;
  }
}

TEST(TorchOptimizer, AgreesWithOurAdamW) {
  OptimizerModel ours, theirs;
  const auto one = make_test_optimizer(AdamW{.lr = 0.02}, {}, ours.shards, OptimizerModel::kParameters);
  const auto other =
      make_test_optimizer(known_cases()[0].spec, {}, theirs.shards, OptimizerModel::kParameters);
  for (int step = 0; step < 10; ++step) {
    step_both(ours, *one, nullptr, step);
    step_both(theirs, *other, nullptr, step);
  }
  for (size_t s = 0; s < 2; ++s) {
    EXPECT_TRUE(at::allclose(ours.shards[s].master, theirs.shards[s].master, 1e-6, 1e-6));
    EXPECT_TRUE(at::allclose(one.state()[s].values, other.state()[s].values, 1e-6, 1e-6));
  }
}

TEST(TorchOptimizer, GroupsHaveTheirOwnRateAndDecay) {
  const std::vector<ParameterGroup> groups{{.pattern = "p0", .lr = 0.5},
                                           {.pattern = "p2", .lr_scale = 0.25, .weight_decay = 0}};
  OptimizerModel model(at::kFloat, at::kFloat, {1, 0, 2, 0, 0});
  const auto spec = make_case<to::SGD>("SGD", to::SGDOptions(0.1).weight_decay(0.5), {}).spec;
  const auto optimizer = make_test_optimizer(spec, groups, model.shards, OptimizerModel::kParameters);
  model.set_gradients(0, kGradientScale);
  optimizer->step({.gradient_scale = kGradientScale, .lr = 0.1, .used = model.used});
  const double lr[] = {0.5, 0.1, 0.025, 0.1}, decay[] = {0.5, 0.5, 0, 0.5};
  for (int i = 0; i < 4; ++i) {
    const at::Tensor before = model.plain[i].detach(), gradient = model.plain[i].grad() + decay[i] * before;
    EXPECT_TRUE(at::allclose(model.master(i), before - lr[i] * gradient, 1e-6, 1e-6)) << i;
  }
}

TEST(TorchOptimizer, ScheduledBetasReachAdamOnly) {
  OptimizerModel model;
  const auto cases = known_cases();
  const auto adam = make_test_optimizer(cases[1].spec, {}, model.shards, OptimizerModel::kParameters);
  const auto sgd = make_test_optimizer(cases[2].spec, {}, model.shards, OptimizerModel::kParameters);
  model.set_gradients(0, kGradientScale);
  const StepInput input{
      .gradient_scale = kGradientScale, .lr = 0.1, .used = model.used, .betas = Betas{0.5, 0.75}};
  adam->step(input);
  EXPECT_TRUE(at::allclose(model.slice(adam.state()[0].values, 0), model.plain[0].grad() * 0.5));
  EXPECT_ERROR(sgd->step(input), Unsupported, "torch::optim::SGD has no betas");
}

/// An optimizer of the user's own: sign descent with state that nobody else knows.
struct SignOptions : to::OptimizerCloneableOptions<SignOptions> {
  double lr = 0.1;
  double get_lr() const override { return lr; }
  void set_lr(double value) override { lr = value; }
};
struct SignDescent : to::Optimizer {
  explicit SignDescent(const Groups& groups) : Optimizer(groups, std::make_unique<SignOptions>()) {}
  at::Tensor step(LossClosure) override {
    at::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (auto& leaf : group.params()) {
        if (leaf.grad().defined()) leaf.sub_(leaf.grad().sign(), group.options().get_lr());
      }
    }
    return {};
  }
};

TEST(TorchOptimizer, CustomOptimizersTrainButCannotBeSaved) {
  OptimizerModel model;
  const TorchOptimizer spec{[](Groups groups) { return std::make_unique<SignDescent>(std::move(groups)); }};
  EXPECT_EQ(base_lr(spec), 0.1);
  EXPECT_EQ(optimizer_state_bytes(spec), std::nullopt);
  const auto optimizer = make_test_optimizer(spec, {}, model.shards, OptimizerModel::kParameters);
  model.set_gradients(0, kGradientScale);
  const at::Tensor before = model.master(0).clone();
  optimizer->step({.gradient_scale = kGradientScale, .lr = 0.25, .used = model.used});
  EXPECT_TRUE(at::equal(model.master(0), before - 0.25 * model.plain[0].grad().sign()));
  EXPECT_ERROR(optimizer.state(), Unsupported, "SignDescent");
  EXPECT_ERROR(optimizer->set_parameter_steps(optimizer->parameter_steps()), Unsupported, "SignDescent");
  EXPECT_ERROR(make_test_optimizer(spec, {{.pattern = "p0", .weight_decay = 0.5}}, model.shards,
                                   OptimizerModel::kParameters),
               Unsupported, "weight_decay cannot be set");
}

TEST(TorchOptimizer, RefusesWhatItCannotRun) {
  OptimizerModel model;
  const auto make = [&](const TorchOptimizer& spec, std::vector<ParameterGroup> groups = {}) {
    return make_test_optimizer(spec, std::move(groups), model.shards, OptimizerModel::kParameters);
  };
  const TorchOptimizer lbfgs{[](Groups groups) { return std::make_unique<to::LBFGS>(std::move(groups)); }};
  EXPECT_ERROR(make(lbfgs), Unsupported, "LBFGS");
  EXPECT_ERROR(make(lbfgs, {{.pattern = "p0"}}), Unsupported, "LBFGS");
  const TorchOptimizer none{[](Groups) { return nullptr; }};
  EXPECT_ERROR(make(none), Config, "make returned no optimizer");
  const TorchOptimizer bad = make_case<to::AdamW>("", to::AdamWOptions(-1), {}).spec;
  EXPECT_ERROR(make(bad), Config, "Invalid learning rate: -1");
  const TorchOptimizer flattens{[](Groups groups) {
    std::vector<at::Tensor> all;
    for (auto& group : groups) all.insert(all.end(), group.params().begin(), group.params().end());
    return std::make_unique<to::AdamW>(all);
  }};
  EXPECT_NO_THROW(make(flattens));
  EXPECT_ERROR(make(flattens, {{.pattern = "p0"}}), Config, "make was given 2 parameter groups");
}

}  // namespace
}  // namespace zero
