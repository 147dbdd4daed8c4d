#include "train/model_stages.h"

#include <utility>

#include "plan/model_parts.h"
#include "zero/model_spec.h"

namespace zero::training {

std::vector<PipelineStage> stages_of_model(std::shared_ptr<LanguageModel> model,
                                           const std::vector<int64_t>& blocks, std::function<void(int)> begin,
                                           std::function<KeyValueCache*()> cache) {
  const auto patterns = stage_patterns(module_spec(*model), blocks);
  std::vector<PipelineStage> stages(blocks.size());
  int64_t first = 0;
  for (size_t s = 0; s < blocks.size(); ++s) {
    PipelineStage& stage = stages[s];
    const int64_t end = first + blocks[s];
    const bool is_first = s == 0;
    stage.parameters = patterns[s];
    stage.forward = [model, begin, cache_of = cache, is_first, first, end](const StageTensors& inputs,
                                                                           int index) {
      begin(index);
      KeyValueCache* const cache = cache_of ? cache_of() : nullptr;
      const at::Tensor x =
          is_first ? model->first_part(inputs.at(0), cache ? cache->length() : 0) : inputs.at(0);
      return StageTensors{model->run_blocks(x, first, end, cache)};
    };
    first = end;
  }
  return stages;
}

}  // namespace zero::training
