#pragma once
// A language model's tree as what stands before its blocks, the blocks, and what stands behind them.

#include <cstdint>
#include <string>
#include <vector>

#include "zero/plan.h"

namespace zero {

struct ModelParts {
  std::string blocks;  // the name of their list
  std::vector<const ModuleSpec*> each_block;
  // Parameters outside the blocks. A tied head is the embedding, which then is in both.
  std::vector<const ParameterSpec*> first, last;
};

/// Of our models; points into `model`. Throws Internal for a tree that has no blocks.
ModelParts parts_of_model(const ModuleSpec& model);

/// Patterns of the names of each stage's parameters, where stage s has `blocks[s]` blocks.
std::vector<std::vector<std::string>> stage_patterns(const ModuleSpec& model,
                                                     const std::vector<int64_t>& blocks);

/// Leaves the parameters whose names match one of stage_patterns().
void keep_parameters(ModuleSpec& module, const std::vector<std::string>& patterns);

}  // namespace zero
