#pragma once
// What a plan says and what an engine holds, field by field.

#include <gtest/gtest.h>

#include "zero/plan.h"

namespace zero::testing {

inline void expect_same(const RankPlan& said, const RankPlan& held) {
  EXPECT_EQ(said.stage, held.stage);
  EXPECT_EQ(said.parameter_bytes, held.parameter_bytes);
  EXPECT_EQ(said.gradient_bytes, held.gradient_bytes);
  EXPECT_EQ(said.master_bytes, held.master_bytes);
  EXPECT_EQ(said.optimizer_bytes, held.optimizer_bytes);
  EXPECT_EQ(said.gather_window_bytes, held.gather_window_bytes);
  EXPECT_EQ(said.bucket_bytes, held.bucket_bytes);
  EXPECT_EQ(said.largest_gradient_bytes, held.largest_gradient_bytes);
  EXPECT_EQ(said.common_bytes, held.common_bytes);
  EXPECT_EQ(said.all_gather_elements, held.all_gather_elements);
  EXPECT_EQ(said.reduce_scatter_elements, held.reduce_scatter_elements);
  EXPECT_EQ(said.all_reduce_elements, held.all_reduce_elements);
  EXPECT_EQ(said.padding_elements, held.padding_elements);
}

inline void expect_same(const UnitLayout& said, const UnitLayout& held) {
  EXPECT_EQ(said.name, held.name);
  EXPECT_EQ(said.dtype, held.dtype) << said.name;
  EXPECT_EQ(said.trainable, held.trainable) << said.name;
  EXPECT_EQ(said.numel, held.numel) << said.name;
  EXPECT_EQ(said.padded_numel, held.padded_numel) << said.name;
  EXPECT_EQ(said.shard_numel, held.shard_numel) << said.name;
  ASSERT_EQ(said.parameters.size(), held.parameters.size()) << said.name;
  for (size_t i = 0; i < said.parameters.size(); ++i) {
    EXPECT_EQ(said.parameters[i].name, held.parameters[i].name);
    EXPECT_EQ(said.parameters[i].aliases, held.parameters[i].aliases) << said.parameters[i].name;
    EXPECT_EQ(said.parameters[i].shape, held.parameters[i].shape) << said.parameters[i].name;
    EXPECT_EQ(said.parameters[i].offset, held.parameters[i].offset) << said.parameters[i].name;
    EXPECT_EQ(said.parameters[i].numel, held.parameters[i].numel) << said.parameters[i].name;
  }
}

inline void expect_same(const Plan& said, const Plan& held) {
  EXPECT_EQ(said.stage, held.stage);
  EXPECT_EQ(said.ranks, held.ranks);
  EXPECT_EQ(said.shard_ranks, held.shard_ranks);
  EXPECT_EQ(said.replica_ranks, held.replica_ranks);
  EXPECT_EQ(said.placements, held.placements);
  EXPECT_EQ(said.state.gradient_bytes, held.state.gradient_bytes);
  EXPECT_EQ(said.state.master_bytes, held.state.master_bytes);
  EXPECT_EQ(said.state.bf16_master_bytes, held.state.bf16_master_bytes);
  EXPECT_EQ(said.state.optimizer_bytes, held.state.optimizer_bytes);
  EXPECT_EQ(said.communication_dtype, held.communication_dtype);
  EXPECT_EQ(said.accumulation_dtype, held.accumulation_dtype);
  EXPECT_EQ(said.accumulation_steps, held.accumulation_steps);
  EXPECT_EQ(said.gradient_predivide_factor, held.gradient_predivide_factor);
  EXPECT_EQ(said.reduce_bucket_numel, held.reduce_bucket_numel);
  EXPECT_EQ(said.budget_bytes, held.budget_bytes);
  EXPECT_EQ(said.prefetch_bytes, held.prefetch_bytes);
  EXPECT_EQ(said.overlap, held.overlap);
  EXPECT_EQ(said.cpu_operators, held.cpu_operators);
  expect_same(said.rank, held.rank);
  ASSERT_EQ(said.units.size(), held.units.size());
  for (size_t i = 0; i < said.units.size(); ++i) expect_same(said.units[i], held.units[i]);
}

}  // namespace zero::testing
