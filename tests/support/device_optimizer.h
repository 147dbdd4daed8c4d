#pragma once
// Optimizers on a device beside the CPU's, bit for bit.

#include <gtest/gtest.h>

#include <variant>

#include "support/optimizer_model.h"
#include "zero/optimizer_rules.h"

namespace zero::testing {

/// Three steps of a rule; on the device its passes are its own kernels, one launch each.
inline void expect_the_cpus_updates(const OptimizerRule& rule, at::ScalarType parameter, bool split,
                                    c10::Device device) {
  OptimizerModel host(parameter, at::kBFloat16);
  if (split) host.split_masters();
  std::vector<TestShard> there = host.shards;
  for (TestShard& shard : there) {
    const bool is_one = shard.parameter.is_same(shard.master);
    shard.master = shard.master.to(device);
    shard.gradient = shard.gradient.to(device);
    shard.parameter = is_one ? shard.master : shard.parameter.to(device);
  }
  const auto spec = std::visit([](const auto& known) { return OptimizerSpec(known); }, rule);
  const TestOptimizer expected = make_test_optimizer(spec, {}, host.shards, OptimizerModel::kParameters);
  const TestOptimizer actual = make_test_optimizer(spec, {}, there, OptimizerModel::kParameters);
  for (int step = 0; step < 3; ++step) {
    host.set_gradients(step, 1);
    for (size_t s = 0; s < there.size(); ++s) there[s].gradient.copy_(host.shards[s].gradient);
    const StepInput input{.gradient_scale = 1, .lr = 0.01, .used = host.used};
    expected->step(input);
    actual->step(input);
  }
  for (size_t s = 0; s < there.size(); ++s) {
    EXPECT_TRUE(at::equal(there[s].master.cpu(), host.shards[s].master)) << rule_name(rule);
    EXPECT_TRUE(at::equal(there[s].parameter.cpu(), host.shards[s].parameter)) << rule_name(rule);
  }
  const std::vector<TestState> states = expected.state(), copies = actual.state();
  ASSERT_EQ(states.size(), copies.size());
  for (size_t i = 0; i < states.size(); ++i)
    EXPECT_TRUE(at::equal(copies[i].values.cpu(), states[i].values)) << states[i].name;
}

}  // namespace zero::testing
