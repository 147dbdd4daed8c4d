// Stages of a torch::nn::Sequential.
#include <torch/nn/modules/container/sequential.h>

#include <string>
#include <utility>

#include "zero/error.h"
#include "zero/pipeline.h"

namespace zero {

std::vector<PipelineStage> stages_of(torch::nn::SequentialImpl& module, const std::vector<int64_t>& counts) {
  int64_t total = 0;
  for (const int64_t count : counts) {
    require(count >= 0, ErrorKind::Config, "stages", "a stage of " + std::to_string(count) + " elements");
    total += count;
  }
  require(total == static_cast<int64_t>(module.size()), ErrorKind::Config, "stages",
          "their counts add up to " + std::to_string(total) + " of the module's " +
              std::to_string(module.size()) + " elements");
  const auto named = module.named_children();
  std::vector<PipelineStage> stages;
  size_t begin = 0;
  for (const int64_t count : counts) {
    const size_t end = begin + static_cast<size_t>(count);
    PipelineStage stage;
    for (size_t i = begin; i < end; ++i)
      if (!named[i].value()->parameters().empty()) stage.parameters.push_back(named[i].key() + ".*");
    stage.forward = [&module, begin, end](const StageTensors& inputs, int) {
      at::Tensor x = inputs.at(0);
      for (auto at = module.begin() + begin; at != module.begin() + end; ++at)
        x = at->any_forward(x).get<at::Tensor>();
      return StageTensors{x};
    };
    stages.push_back(std::move(stage));
    begin = end;
  }
  return stages;
}

}  // namespace zero
