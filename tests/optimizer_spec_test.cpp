// Specs, parameter groups, the gradient norm and clipping.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/expect_error.h"
#include "support/optimizer_model.h"

namespace zero {
namespace {

using testing::OptimizerModel;

TEST(Groups, FirstMatchWins) {
  const std::vector<std::string> names{"wte.weight", "h.0.ln.bias", "h.0.fc.weight", "h.0.fc.bias"};
  const std::vector<ParameterGroup> groups{{.pattern = "*.ln.*"}, {.pattern = "*.bias"}};
  EXPECT_EQ(assign_groups(names, groups), (std::vector<int>{0, 1, 0, 2}));
  const std::vector<ParameterGroup> wrong{{.pattern = "*.bais"}};
  EXPECT_ERROR(assign_groups(names, wrong), Config, "\"*.bais\": matches no parameter");
  EXPECT_ERROR(validate(std::vector<ParameterGroup>{{.pattern = "x", .lr_scale = -2}}), Config,
               "\"x\": lr_scale is -2");
  EXPECT_ERROR(validate(std::vector<ParameterGroup>{{.pattern = ""}}), Config, "pattern is empty");
  EXPECT_ERROR(validate(std::vector<ParameterGroup>{{.pattern = "h.[0-4"}}), Config,
               "\"h.[0-4\": pattern has a [ that is never closed");
}

TEST(Spec, RefusesBadValuesByName) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_ERROR(validate(AdamW{.lr = -1e-3}), Config, "AdamW: lr is -0.001");
  EXPECT_ERROR(validate(AdamW{.beta1 = 1}), Config, "AdamW: beta1 is 1");
  EXPECT_ERROR(validate(Adam{.beta2 = nan}), Config, "Adam: beta2 is nan");
  EXPECT_ERROR(validate(Adam{.eps = -1e-8}), Config, "Adam: eps is -1e-08");
  EXPECT_ERROR(validate(SGD{.momentum = -0.1}), Config, "SGD: momentum is -0.1");
  EXPECT_ERROR(validate(SGD{.nesterov = true}), Config,
               "SGD: nesterov is true, expected false unless momentum > 0 and dampening = 0");
  EXPECT_ERROR(validate(SGD{.momentum = 0.9, .dampening = 0.1, .nesterov = true}), Config,
               "SGD: nesterov is true");
  EXPECT_ERROR(validate(Lion{.weight_decay = -1}), Config, "Lion: weight_decay is -1");
  EXPECT_ERROR(validate(TorchOptimizer{}), Config, "make is empty");
  EXPECT_ERROR(validate(LAMB{.min_coeff = -1}), Config, "LAMB: min_coeff is -1");
  EXPECT_ERROR(validate(LAMB{.max_coeff = 1, .min_coeff = 2}), Config,
               "LAMB: min_coeff is above max_coeff, expected at most max_coeff");
  for_each_rule([&](const OptimizerRule& rule) {
    EXPECT_NO_THROW(validate_rule(rule)) << rule_name(rule);
    for (const Hyperparameter& one : hyperparameters_of(rule)) {
      if (one.kind == Hyperparameter::Kind::Switch) continue;
      for (const double bad : {nan, -0.5}) {
        OptimizerRule wrong = rule;
        auto values = numbers_of(rule, one);
        values[one.kind == Hyperparameter::Kind::Pair ? 1 : 0] = bad;
        set_numbers(wrong, one, values);
        const std::string field(one.fields[one.kind == Hyperparameter::Kind::Pair ? 1 : 0]);
        EXPECT_ERROR(validate_rule(wrong), Config, std::string(rule_name(rule)) + ": " + field + " is ");
      }
    }
  });
}

TEST(Spec, StateBytesAndRate) {
  EXPECT_EQ(optimizer_state_bytes(AdamW{}), 8);
  EXPECT_EQ(optimizer_state_bytes(Adam{}), 8);
  EXPECT_EQ(optimizer_state_bytes(SGD{}), 0);
  EXPECT_EQ(optimizer_state_bytes(SGD{.momentum = 0.9}), 4);
  EXPECT_EQ(optimizer_state_bytes(Lion{}), 4);
  EXPECT_EQ(base_lr(Lion{.lr = 0.25}), 0.25);
  for (const OptimizerSpec& spec : {OptimizerSpec(AdamW{}), OptimizerSpec(SGD{}),
                                    OptimizerSpec(SGD{.momentum = 0.5}), OptimizerSpec(Lion{})}) {
    OptimizerModel model;
    int64_t bytes = 0;
    for (const auto& state :
         make_test_optimizer(spec, {}, model.shards, OptimizerModel::kParameters).state()) {
      bytes += state.values.nbytes();
    }
    EXPECT_EQ(bytes, *optimizer_state_bytes(spec) *
                         (model.shards[0].master.numel() + model.shards[1].master.numel()));
  }
}

TEST(Clip, IsTorchsFormula) {
  const ClipResult clipped = clip_result(25, 1);
  EXPECT_DOUBLE_EQ(clipped.norm_before, 5);
  EXPECT_DOUBLE_EQ(clipped.coefficient, 1 / (5 + 1e-6));
  EXPECT_DOUBLE_EQ(clipped.norm_after, 5 / (5 + 1e-6));
  EXPECT_EQ(clip_result(0.25, 1).coefficient, 1);
  EXPECT_EQ(clip_result(0.25, 1).norm_after, 0.5);
  EXPECT_EQ(clip_result(1e6, 0).coefficient, 1);
  EXPECT_EQ(clip_result(0, 1).coefficient, 1);
  EXPECT_TRUE(std::isinf(clip_result(std::numeric_limits<double>::infinity(), 1).norm_after));
  EXPECT_TRUE(std::isnan(clip_result(std::numeric_limits<double>::quiet_NaN(), 1).norm_before));
  EXPECT_ERROR(clip_result(1, -1), Config, "max_norm is -1");
}

TEST(Norm, CountsUsedSegmentsOnly) {
  for (const auto gradient : {at::kFloat, at::kBFloat16, at::kHalf}) {
    OptimizerModel model(at::kFloat, gradient);
    model.used = {1, 1, 0, 1, 1};
    model.set_gradients(3, 0.5);
    for (auto& shard : model.shards) {  // padding must not count
      const at::Tensor kept = shard.gradient.clone();
      shard.gradient.fill_(1000);
      for (const auto& segment : shard.segments) {
        shard.gradient.slice(0, segment.begin, segment.end).copy_(kept.slice(0, segment.begin, segment.end));
      }
    }
    double expected = 0;
    for (const auto& leaf : model.plain) {
      if (leaf.grad().defined()) expected += leaf.grad().to(at::kDouble).square().sum().item<double>();
    }
    EXPECT_NEAR(norm_of(model.shards, 0.5, model.used), expected, 1e-12 * expected);
  }
}

TEST(Norm, IsNotFiniteIfAGradientIsNot) {
  OptimizerModel model;
  model.set_gradients(0, 1);
  model.shards[0].gradient[60000] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(norm_of(model.shards, 0.5, model.used)));
  model.shards[1].gradient[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(norm_of(model.shards, 0.5, model.used)));
  model.used = {1, 0, 0, 1, 1};
  EXPECT_TRUE(std::isfinite(norm_of(model.shards, 0.5, model.used)));
}

}  // namespace
}  // namespace zero
