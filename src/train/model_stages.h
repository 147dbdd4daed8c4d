#pragma once
// A language model as stages of a pipeline.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "zero/language_model.h"
#include "zero/pipeline.h"

namespace zero::training {

/// `blocks[s]` of the model's blocks for stage s; the first also has what stands before them and takes
/// tokens, the last the norm, and gives what last_part() takes. `begin(index)` is called before each stage's
/// part of micro-batch `index`; `cache()` then gives the cache of the positions before, or null. The stages
/// hold the model.
std::vector<PipelineStage> stages_of_model(std::shared_ptr<LanguageModel> model,
                                           const std::vector<int64_t>& blocks, std::function<void(int)> begin,
                                           std::function<KeyValueCache*()> cache = {});

}  // namespace zero::training
