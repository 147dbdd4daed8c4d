// Optimizers on shards against torch::optim on ordinary parameters, and against their own contract.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>

#include "optim/fused_operators.h"
#include "optim/kernel_passes.h"
#include "optim/kernels/scalar.h"
#include "optim/rule_optimizer.h"
#include "support/expect_error.h"
#include "support/optimizer_model.h"

namespace zero {
namespace {

using testing::OptimizerModel;
using TorchGroups = std::vector<torch::optim::OptimizerParamGroup>;

constexpr double kScale = 0.125;

StepInput input_of(const OptimizerModel& model, double lr) {
  return {.gradient_scale = kScale, .lr = lr, .used = model.used};
}

testing::TestOptimizer rule_optimizer(const OptimizerRule& rule, const OptimizerModel& model,
                                      Execution execution) {
  return {model.shards, [&](StateStore& states, std::vector<OptimizerShard> shards) {
            return std::make_unique<RuleOptimizer>(rule, std::vector<ParameterGroup>{}, states,
                                                   std::move(shards), OptimizerModel::kParameters, execution,
                                                   /*rounding_seed=*/0);
          }};
}

/// Twenty steps of both, with a parameter missing in some of them.
void expect_follows(const OptimizerSpec& spec, torch::optim::Optimizer& torch_optimizer,
                    OptimizerModel& model) {
  const double lr = base_lr(spec);
  const auto optimizer = make_test_optimizer(spec, {}, model.shards, OptimizerModel::kParameters);
  for (int step = 0; step < 20; ++step) {
    model.used[1] = step % 5 != 2;
    model.used[3] = step > 6;  // its first step comes late: bias correction counts its own steps
    model.set_gradients(step, kScale);
    const double rate = lr / (1 + step);
    for (auto& group : torch_optimizer.param_groups()) group.options().set_lr(rate);
    torch_optimizer.step();
    optimizer->step(input_of(model, rate));
    ASSERT_LT(model.distance(), 1e-6) << "step " << step;
  }
  EXPECT_EQ(optimizer->parameter_steps(), (std::vector<int64_t>{20, 16, 20, 13, 20}));
}

TEST(Optimizer, AdamWFollowsTorch) {
  OptimizerModel model;
  torch::optim::AdamW torch_optimizer(
      model.plain, torch::optim::AdamWOptions(0.02).betas({0.8, 0.95}).eps(1e-6).weight_decay(0.1));
  expect_follows(AdamW{.lr = 0.02, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1},
                 torch_optimizer, model);
}

TEST(Optimizer, AdamFollowsTorch) {
  OptimizerModel model;
  torch::optim::Adam torch_optimizer(model.plain, torch::optim::AdamOptions(0.02).weight_decay(0.1));
  expect_follows(Adam{.lr = 0.02, .weight_decay = 0.1}, torch_optimizer, model);
}

TEST(Optimizer, SgdFollowsTorch) {
  OptimizerModel model;
  torch::optim::SGD torch_optimizer(model.plain, torch::optim::SGDOptions(0.05).weight_decay(0.01));
  expect_follows(SGD{.lr = 0.05, .weight_decay = 0.01}, torch_optimizer, model);
}

TEST(Optimizer, SgdWithMomentumAndDampeningFollowsTorch) {
  OptimizerModel model;
  torch::optim::SGD torch_optimizer(
      model.plain, torch::optim::SGDOptions(0.05).momentum(0.9).dampening(0.3).weight_decay(0.01));
  expect_follows(SGD{.lr = 0.05, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01}, torch_optimizer,
                 model);
}

TEST(Optimizer, SgdWithNesterovFollowsTorch) {
  OptimizerModel model;
  torch::optim::SGD torch_optimizer(model.plain, torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true));
  expect_follows(SGD{.lr = 0.05, .momentum = 0.9, .nesterov = true}, torch_optimizer, model);
}

TEST(Optimizer, LionFollowsItsPaper) {
  OptimizerModel model;
  const Lion spec{.lr = 0.01, .beta1 = 0.9, .beta2 = 0.98, .weight_decay = 0.1};
  const auto optimizer = make_test_optimizer(spec, {}, model.shards, OptimizerModel::kParameters);
  std::vector<at::Tensor> momentum;
  for (const auto& leaf : model.plain) momentum.push_back(at::zeros_like(leaf, at::kDouble));
  for (int step = 0; step < 20; ++step) {
    at::NoGradGuard no_grad;
    model.set_gradients(step, kScale);
    for (int i = 0; i < OptimizerModel::kParameters; ++i) {
      const at::Tensor g = model.plain[i].grad().to(at::kDouble), c = momentum[i] * 0.9 + g * 0.1;
      model.plain[i].copy_(model.plain[i] * (1 - 0.01 * 0.1) - 0.01 * c.sign());
      momentum[i] = momentum[i] * 0.98 + g * 0.02;
    }
    optimizer->step(input_of(model, spec.lr));
  }
  EXPECT_LT(model.distance(), 2e-6);
}

TEST(Optimizer, AdamWithoutBiasCorrection) {
  OptimizerModel model;
  const auto optimizer =
      make_test_optimizer(AdamW{.lr = 1, .eps = 0, .weight_decay = 0, .bias_correction = false}, {},
                          model.shards, OptimizerModel::kParameters);
  model.set_gradients(0, kScale);
  const at::Tensor before = model.master(2).clone();
  optimizer->step(input_of(model, 1));
  const double step = 0.1 / std::sqrt(0.001);  // m / sqrt(v) after one step, whatever the gradient
  EXPECT_LT(((before - model.master(2)).abs() - step).abs().max().item<double>(), 1e-5);
}

/// Kernels and at:: operators from the same start.
void expect_executions_agree(const OptimizerRule& spec, at::ScalarType parameter, at::ScalarType gradient) {
  OptimizerModel fast(parameter, gradient), slow(parameter, gradient);
  const auto kernels = rule_optimizer(spec, fast, Execution::kernels);
  const auto operators = rule_optimizer(spec, slow, Execution::operators);
  for (int step = 0; step < 5; ++step) {
    fast.used[0] = slow.used[0] = step != 1;
    fast.set_gradients(step, kScale);
    slow.set_gradients(step, kScale);
    kernels->step(input_of(fast, 0.01));
    operators->step(input_of(slow, 0.01));
    for (size_t s = 0; s < fast.shards.size(); ++s) {
      EXPECT_TRUE(at::allclose(fast.shards[s].master, slow.shards[s].master, 1e-6, 1e-6));
      EXPECT_TRUE(at::equal(fast.shards[s].parameter, fast.shards[s].master.to(parameter)));
      EXPECT_TRUE(at::equal(slow.shards[s].parameter, slow.shards[s].master.to(parameter)));
    }
    const auto expected = kernels.state(), actual = operators.state();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(actual[i].values, expected[i].values, 1e-6, 1e-6)) << expected[i].name;
    }
  }
}

TEST(Optimizer, KernelsAndOperatorsAgree) {
  for (const auto parameter : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const auto gradient : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for_each_rule([&](auto rule) {
        rule.weight_decay = 0.1;
        // A sign may flip where both terms cancel to rounding: see below. Adafactor has kernels only.
        if (rule_name(rule) != "Lion" && rule_name(rule) != "Adafactor")
          expect_executions_agree(rule, parameter, gradient);
      });
      expect_executions_agree(SGD{.momentum = 0.9, .nesterov = true}, parameter, gradient);
      expect_executions_agree(SGD{.momentum = 0.9, .dampening = 0.5}, parameter, gradient);
    }
  }
}

TEST(Optimizer, KernelsAndOperatorsAgreeOnLion) {
  // A sign may flip where both terms cancel to rounding, so this data has none.
  expect_executions_agree(Lion{.weight_decay = 0.1}, at::kBFloat16, at::kFloat);
}

/// As one operator of the dispatcher, which is what devices bring kernels for, an update has the kernels'
/// bits.
void expect_fused_bits(const OptimizerRule& spec, at::ScalarType parameter, bool split) {
  OptimizerModel direct(parameter, at::kBFloat16), fused(parameter, at::kBFloat16);
  if (split)
    for (auto* model : {&direct, &fused}) model->split_masters();
  const auto kernels = rule_optimizer(spec, direct, Execution::kernels);
  const auto operators = rule_optimizer(spec, fused, Execution::fused_operators);
  for (int step = 0; step < 3; ++step) {
    direct.used[0] = fused.used[0] = step != 1;
    for (auto* model : {&direct, &fused}) model->set_gradients(step, kScale);
    kernels->step(input_of(direct, 0.01));
    operators->step(input_of(fused, 0.01));
    for (size_t s = 0; s < direct.shards.size(); ++s) {
      EXPECT_TRUE(at::equal(direct.shards[s].master, fused.shards[s].master)) << rule_name(spec);
      EXPECT_TRUE(at::equal(direct.shards[s].parameter, fused.shards[s].parameter)) << rule_name(spec);
    }
    const auto expected = kernels.state(), actual = operators.state();
    ASSERT_EQ(expected.size(), actual.size());
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(at::equal(actual[i].values, expected[i].values)) << expected[i].name;
  }
}

TEST(Optimizer, FusedOperatorsHaveTheKernelsBits) {
  ASSERT_TRUE(fused_operators::exist_for(at::kCPU));
  for_each_rule([&](auto rule) {
    if (rule_name(rule) == "Adafactor") return;  // has kernels only
    rule.weight_decay = 0.1;
    for (const auto parameter : {at::kFloat, at::kBFloat16, at::kHalf})
      expect_fused_bits(rule, parameter, false);
    expect_fused_bits(rule, at::kBFloat16, true);
  });
  expect_fused_bits(SGD{.momentum = 0.9, .nesterov = true}, at::kFloat, false);
}

// Rules are numbered as their rows stand; a number that is none is refused.
TEST(Optimizer, FusedOperatorsKnowRulesByTheirPlace) {
  for_each_rule([](auto rule) {
    EXPECT_EQ(fused_operators::kPlaceOf<decltype(rule)>, static_cast<int64_t>(OptimizerRule(rule).index()));
    fused_operators::with_rule(fused_operators::kPlaceOf<decltype(rule)>, [](const auto& known) {
      EXPECT_TRUE((std::is_same_v<std::decay_t<decltype(known)>, decltype(rule)>));
    });
  });
  EXPECT_THROW(fused_operators::with_rule(std::variant_size_v<OptimizerRule>, [](const auto&) {}),
               c10::Error);
}

// Sums of squares are the same bits as an operator, in blocks of the same size.
TEST(Optimizer, FusedSumsOfSquaresHaveTheKernelsBits) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t numel : {int64_t{0}, int64_t{1}, kSumBlockNumel, 3 * kSumBlockNumel + 17}) {
      const at::Tensor values = at::randn({numel}).to(type);
      const at::Tensor sums = fused_operators::sums_of_squares(values);
      EXPECT_TRUE(at::equal(sums, kernel_passes::sums_of_squares(values))) << type << " " << numel;
      EXPECT_EQ(sums.numel(), (numel + kSumBlockNumel - 1) / kSumBlockNumel);
      EXPECT_NEAR(sums.sum().item<double>(), values.to(at::kDouble).square().sum().item<double>(),
                  1e-6 * numel);
    }
}

// Two halves in place of a whole master change a value in 131072 by one unit in the last place.
TEST(Optimizer, SplitMastersTakeTheSameSteps) {
  for (const auto execution : {Execution::kernels, Execution::operators}) {
    for (const OptimizerRule& spec :
         {OptimizerRule(AdamW{}), OptimizerRule(Adam{.weight_decay = 0.1}),
          OptimizerRule(SGD{.momentum = 0.9}), OptimizerRule(Lion{.weight_decay = 0.1})}) {
      OptimizerModel whole(at::kBFloat16, at::kBFloat16), split(at::kBFloat16, at::kBFloat16);
      split.split_masters();
      const auto expected = rule_optimizer(spec, whole, execution);
      const auto actual = rule_optimizer(spec, split, execution);
      for (int step = 0; step < 5; ++step) {
        whole.used[0] = split.used[0] = step != 1;
        for (auto* model : {&whole, &split}) model->set_gradients(step, kScale);
        expected->step(input_of(whole, 0.01));
        actual->step(input_of(split, 0.01));
        for (size_t s = 0; s < split.shards.size(); ++s) {
          const at::Tensor masters = OptimizerModel::masters(split.shards[s]);
          EXPECT_TRUE(at::allclose(masters, whole.shards[s].master, 1e-6, 1e-9));
          EXPECT_LE(at::ne(masters, whole.shards[s].master).sum().item<int64_t>(), 12);
          EXPECT_TRUE(at::equal(split.shards[s].parameter, masters.to(at::kBFloat16)));
        }
      }
    }
  }
}

TEST(Optimizer, TwoHalvesAreTheMasterWhicheverCodeJoinsThem) {
  at::manual_seed(4);
  at::Tensor values = at::randint(std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(),
                                  {700001}, at::kInt)
                          .view(at::kFloat);
  values = at::where(values.isnan(), at::ones_like(values), values);
  const at::Tensor half = at::empty_like(values, at::kBFloat16),
                   remainder = at::empty_like(values, kRemainderType), joined = at::empty_like(values);
  split_master(values, half, remainder);
  join_master(half, remainder, joined);
  EXPECT_TRUE(at::equal(half, values.to(at::kBFloat16)));
  const auto* bits = static_cast<const uint16_t*>(half.const_data_ptr());
  for (int64_t i = 0; i < values.numel(); ++i) {
    const float value = values.const_data_ptr<float>()[i];
    ASSERT_EQ(remainder.const_data_ptr<int16_t>()[i], kernels::remainder_of(value, bits[i])) << value;
    ASSERT_EQ(joined.const_data_ptr<float>()[i],
              kernels::join(bits[i], remainder.const_data_ptr<int16_t>()[i]));
  }
}

TEST(Optimizer, SplitMastersNeedTheirOtherHalf) {
  const auto make = [](const OptimizerSpec& spec, const OptimizerModel& model) {
    return make_test_optimizer(spec, {}, model.shards, OptimizerModel::kParameters);
  };
  OptimizerModel model(at::kBFloat16);
  model.split_masters();
  EXPECT_NO_THROW(make(AdamW{}, model));
  const TorchOptimizer torch{[](auto groups) {
    return std::make_unique<torch::optim::SGD>(std::move(groups), torch::optim::SGDOptions(0.1));
  }};
  EXPECT_FALSE(split_masters_work(torch));
  EXPECT_THROW(make(torch, model), Error);
  model.shards[1].parameter = model.shards[1].parameter.to(at::kHalf);
  EXPECT_THROW(make(AdamW{}, model), Error);
  model.shards[1].parameter = at::Tensor();
  EXPECT_THROW(make(AdamW{}, model), Error);
}

TEST(Optimizer, PaddingAndUnusedParametersStayAsTheyAre) {
  for (const OptimizerSpec& spec : {OptimizerSpec(AdamW{}), OptimizerSpec(SGD{.momentum = 0.9}),
                                    OptimizerSpec(Lion{}), OptimizerSpec(LAMB{})}) {
    OptimizerModel model(at::kBFloat16);
    const auto optimizer = make_test_optimizer(spec, {}, model.shards, OptimizerModel::kParameters);
    for (auto& shard : model.shards) shard.gradient.fill_(1);  // padding too
    model.used = {1, 0, 0, 1, 1};
    const at::Tensor before = model.master(1).clone();
    optimizer->step(input_of(model, 0.1));
    EXPECT_TRUE(at::equal(model.master(1), before));
    EXPECT_EQ(model.shards[0].master.slice(0, 37, 40).count_nonzero().item<int64_t>(), 0);
    EXPECT_EQ(model.shards[0].parameter.slice(0, 37, 40).count_nonzero().item<int64_t>(), 0);
    for (const auto& state : optimizer.state()) {
      const int unused = state.shard == 0 ? 1 : 2, stepped = state.shard == 0 ? 0 : 3;
      EXPECT_EQ(model.slice(state.values, unused).count_nonzero().item<int64_t>(), 0);
      EXPECT_GT(model.slice(state.values, stepped).count_nonzero().item<int64_t>(), 0);
    }
    EXPECT_EQ(optimizer->parameter_steps(), (std::vector<int64_t>{1, 0, 0, 1, 1}));
  }
}

TEST(Optimizer, BitsDoNotDependOnThreads) {
  for (const OptimizerSpec& spec : {OptimizerSpec(AdamW{}), OptimizerSpec(LAMB{})}) {
    std::vector<at::Tensor> results;
    std::vector<double> norms;
    for (const int threads : {1, 2, 5}) {
      at::set_num_threads(threads);
      OptimizerModel model(at::kBFloat16);
      const auto optimizer = make_test_optimizer(spec, {}, model.shards, OptimizerModel::kParameters);
      for (int step = 0; step < 3; ++step) {
        model.set_gradients(step, kScale);
        optimizer->step(input_of(model, 0.01));
      }
      results.push_back(model.shards[0].master.clone());
      norms.push_back(norm_of(model.shards, kScale, model.used));
    }
    at::set_num_threads(1);
    EXPECT_TRUE(at::equal(results[0], results[1]) && at::equal(results[0], results[2]));
    EXPECT_EQ(norms[0], norms[1]);
    EXPECT_EQ(norms[0], norms[2]);
  }
}

// A parameter in two shards: its sums are those of both.
TEST(Optimizer, SumsOfAParameterAreOfAllItsParts) {
  for (const auto execution : {Execution::kernels, Execution::operators}) {
    OptimizerModel whole, first, second;
    const ShardSegment segment = whole.segment(1);
    const int64_t middle = segment.begin + 40001;
    const auto only = [&](OptimizerModel& model, int64_t begin, int64_t end) {
      model.shards.resize(1);
      auto& segments = model.shards[0].segments;
      segments = {segment};
      segments[0].begin = segments[0].counted_begin = begin;
      segments[0].end = segments[0].counted_end = end;
    };
    only(whole, segment.begin, segment.end);
    only(first, segment.begin, middle);
    only(second, middle, segment.end);
    std::vector<double> sums;  // of the first part, then of both
    const auto step = [&](OptimizerModel& model, std::function<void(std::span<double>)> add) {
      model.shards[0].gradient.copy_(at::ones_like(model.shards[0].gradient));
      const auto optimizer = rule_optimizer(LAMB{}, model, execution);
      StepInput input = input_of(model, 0.1);
      input.sum_over_ranks = std::move(add);
      optimizer->step(input);
    };
    step(whole, {});
    // The second part's sums are needed for the first's step, so it is asked for them first.
    struct Stop {};
    try {
      OptimizerModel copy = second;
      copy.shards[0].master = copy.shards[0].parameter = second.shards[0].master.clone();
      step(copy, [&](std::span<double> own) {
        sums.assign(own.begin(), own.end());
        throw Stop();
      });
      FAIL() << "no sums were asked for";
    } catch (const Stop&) {
    }
    ASSERT_EQ(sums.size(), 2 * OptimizerModel::kParameters * kernels::kDigits);
    EXPECT_GT(kernels::total_of(&sums[2 * kernels::kDigits]), 0);
    std::vector<double> both;
    step(first, [&](std::span<double> own) {
      for (size_t i = 0; i < own.size(); ++i) own[i] += sums[i];
      both.assign(own.begin(), own.end());
    });
    step(second, [&](std::span<double> own) { std::copy(both.begin(), both.end(), own.begin()); });
    const auto part = [](const OptimizerModel& model, int64_t begin, int64_t end) {
      return model.shards[0].master.slice(0, begin, end);
    };
    EXPECT_TRUE(
        at::allclose(part(first, segment.begin, middle), part(whole, segment.begin, middle), 1e-6, 0));
    EXPECT_TRUE(at::allclose(part(second, middle, segment.end), part(whole, middle, segment.end), 1e-6, 0));
  }
}

TEST(Optimizer, GroupsHaveTheirOwnRateAndDecay) {
  const std::vector<ParameterGroup> groups{{.pattern = "p0", .lr = 0.5},
                                           {.pattern = "p2", .lr_scale = 0.25, .weight_decay = 0}};
  OptimizerModel model(at::kFloat, at::kFloat, {1, 0, 2, 0, 0});
  const auto optimizer = make_test_optimizer(SGD{.lr = 0.1, .weight_decay = 0.5}, groups, model.shards,
                                             OptimizerModel::kParameters);
  model.set_gradients(0, kScale);
  optimizer->step(input_of(model, 0.1));
  const double lr[] = {0.5, 0.1, 0.025, 0.1}, decay[] = {0.5, 0.5, 0, 0.5};
  for (int i = 0; i < 4; ++i) {
    const at::Tensor before = model.plain[i].detach(), gradient = model.plain[i].grad() + decay[i] * before;
    EXPECT_TRUE(at::allclose(model.master(i), before - lr[i] * gradient, 1e-6, 1e-6)) << i;
  }
}

TEST(Optimizer, RestoredStateContinuesBitForBit) {
  for (const OptimizerSpec& spec :
       {OptimizerSpec(AdamW{}), OptimizerSpec(SGD{.momentum = 0.9, .dampening = 0.1}),
        OptimizerSpec(LAMB{})}) {
    OptimizerModel straight, resumed;
    const auto first = make_test_optimizer(spec, {}, straight.shards, OptimizerModel::kParameters);
    for (int step = 0; step < 3; ++step) {
      straight.used[3] = step > 0;
      straight.set_gradients(step, kScale);
      first->step(input_of(straight, 0.01));
    }
    const auto second = make_test_optimizer(spec, {}, resumed.shards, OptimizerModel::kParameters);
    for (size_t s = 0; s < 2; ++s) resumed.shards[s].master.copy_(straight.shards[s].master);
    second->set_parameter_steps(first->parameter_steps());
    second.set_state(first.state());
    for (int step = 3; step < 6; ++step) {
      straight.set_gradients(step, kScale);
      resumed.set_gradients(step, kScale);
      first->step(input_of(straight, 0.01));
      second->step(input_of(resumed, 0.01));
    }
    for (size_t s = 0; s < 2; ++s)
      EXPECT_TRUE(at::equal(straight.shards[s].master, resumed.shards[s].master));
    second->set_parameter_steps(std::vector<int64_t>(OptimizerModel::kParameters, 0));
    for (const auto& state : second.state())
      EXPECT_EQ(state.values.count_nonzero().item<int64_t>(), 0) << state.name;
  }
}

TEST(Optimizer, ScheduledBetasReplaceTheSpecs) {
  OptimizerModel scheduled, fixed;
  const auto one = make_test_optimizer(AdamW{}, {}, scheduled.shards, OptimizerModel::kParameters);
  const auto other =
      make_test_optimizer(AdamW{.beta1 = 0.7, .beta2 = 0.99}, {}, fixed.shards, OptimizerModel::kParameters);
  scheduled.set_gradients(0, kScale);
  fixed.set_gradients(0, kScale);
  StepInput input = input_of(scheduled, 0.01);
  input.betas = Betas{0.7, 0.99};
  one->step(input);
  other->step(input_of(fixed, 0.01));
  EXPECT_TRUE(at::equal(scheduled.shards[0].master, fixed.shards[0].master));
  const auto sgd = make_test_optimizer(SGD{}, {}, scheduled.shards, OptimizerModel::kParameters);
  EXPECT_ERROR(sgd->step(input), Unsupported, "SGD has no betas");
  input.betas = Betas{1.01, 0.99};
  EXPECT_ERROR(one->step(input), Usage, "betas hold 1.01");
}

TEST(Optimizer, RefusesStepsThatDoNotFit) {
  OptimizerModel model;
  const auto optimizer = make_test_optimizer(AdamW{}, {}, model.shards, OptimizerModel::kParameters);
  StepInput input = input_of(model, -1);
  EXPECT_ERROR(optimizer->step(input), Usage, "lr is -1");
  input = input_of(model, 1);
  input.gradient_scale = std::nan("");
  EXPECT_ERROR(optimizer->step(input), Usage, "gradient_scale is nan");
  input = input_of(model, 1);
  input.used = input.used.first(3);
  EXPECT_ERROR(optimizer->step(input), Usage, "used has 3 entries for 5 parameters");
  EXPECT_ERROR(optimizer->set_parameter_steps(std::vector<int64_t>{1}), Usage,
               "got 1 counts for 5 parameters");
  EXPECT_ERROR(optimizer->set_parameter_steps(std::vector<int64_t>{1, 1, -2, 1, 1}), Usage, "a count is -2");
}

TEST(Optimizer, RefusesShardsThatBreakTheContract) {
  const auto make = [](const OptimizerModel& model) {
    return make_test_optimizer(AdamW{}, {}, model.shards, OptimizerModel::kParameters);
  };
  OptimizerModel model;
  model.shards[1].master = model.shards[1].master.to(at::kHalf);
  EXPECT_ERROR(make(model), Usage, "optimizer shard 1: master is neither an fp32 tensor");
  model = OptimizerModel();
  model.shards[0].gradient = model.shards[0].gradient.slice(0, 1);
  EXPECT_ERROR(make(model), Usage, "gradient has 70051 elements, master has 70052");
  model = OptimizerModel();
  model.shards[0].gradient = model.shards[0].gradient.to(at::kDouble);
  EXPECT_ERROR(make(model), Unsupported, "Double");
  model = OptimizerModel();
  model.shards[0].segments[1].begin = 36;
  EXPECT_ERROR(make(model), Usage, "segment of p1 is [36, 70041)");
  model = OptimizerModel();
  model.shards[0].segments[1].parameter = 5;
  EXPECT_ERROR(make(model), Usage, "p1 is parameter 5 of 5");
  model = OptimizerModel();
  model.shards[0].segments[1].group = 1;
  EXPECT_ERROR(make(model), Usage, "p1: is in parameter group 1 of 0");
}

}  // namespace
}  // namespace zero
