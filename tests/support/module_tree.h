#pragma once
// A module's tree of names and shapes, to compare with the plan's.

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>

#include <string>

#include "zero/plan.h"

namespace zero::testing {

// The tree of a real module, as the plan would have it described.
inline ModuleSpec spec_of(const torch::nn::Module& module, const std::string& name) {
  ModuleSpec spec;
  spec.name = name;
  spec.is_list = module.as<torch::nn::ModuleList>() != nullptr;
  const std::string prefix = name.empty() ? "" : name + ".";
  for (const auto& p : module.named_parameters(/*recurse=*/false))
    spec.parameters.push_back({.name = prefix + p.key(), .shape = p.value().sizes().vec()});
  for (const auto& child : module.named_children())
    spec.children.push_back(spec_of(*child.value(), prefix + child.key()));
  return spec;
}

inline void expect_equal(const ModuleSpec& expected, const ModuleSpec& actual) {
  EXPECT_EQ(actual.name, expected.name);
  EXPECT_EQ(actual.is_list, expected.is_list) << expected.name;
  ASSERT_EQ(actual.parameters.size(), expected.parameters.size()) << expected.name;
  for (size_t i = 0; i < expected.parameters.size(); i++) {
    EXPECT_EQ(actual.parameters[i].name, expected.parameters[i].name);
    EXPECT_EQ(actual.parameters[i].shape, expected.parameters[i].shape) << expected.parameters[i].name;
  }
  ASSERT_EQ(actual.children.size(), expected.children.size()) << expected.name;
  for (size_t i = 0; i < expected.children.size(); i++)
    expect_equal(expected.children[i], actual.children[i]);
}

}  // namespace zero::testing
