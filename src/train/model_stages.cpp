#include "train/model_stages.h"

#include <utility>

#include "plan/model_parts.h"
#include "zero/model_spec.h"

namespace zero::training {

std::vector<PipelineStage> stages_of_model(std::shared_ptr<LanguageModel> model,
                                           const std::vector<int64_t>& blocks,
                                           std::function<void(int)> begin) {
  const auto patterns = stage_patterns(module_spec(*model), blocks);
  std::vector<PipelineStage> stages(blocks.size());
  int64_t first = 0;
  for (size_t s = 0; s < blocks.size(); ++s) {
    PipelineStage& stage = stages[s];
    const int64_t end = first + blocks[s];
    const bool is_first = s == 0;
    stage.parameters = patterns[s];
    stage.forward = [model, begin, is_first, first, end](const StageTensors& inputs, int index) {
      begin(index);
      const at::Tensor x = is_first ? model->first_part(inputs.at(0)) : inputs.at(0);
      return StageTensors{model->run_blocks(x, first, end)};
    };
    first = end;
  }
  return stages;
}

}  // namespace zero::training
