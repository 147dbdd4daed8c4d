#include "train/training_model.h"

#include <ATen/Context.h>

#include <algorithm>

#include "base/error_text.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/language_model_plan.h"
#include "zero/lazy.h"

namespace zero::training {

std::shared_ptr<LanguageModel> training_model(const Config& config) {
  at::manual_seed(static_cast<uint64_t>(config.model.seed));
  std::shared_ptr<LanguageModel> model = lazily([&] { return make_language_model(shape_of(config)); });
  // On a tape of their own: where the model's values come from files, only the adapters' are drawn.
  lazily([&] { return add_adapters(*model, config.lora); });
  freeze(*model, config);
  // An automatic choice in whatever memory is free has to wait for the plan.
  const bool in_free_memory = config.recompute.every == kRecomputeAuto && config.recompute.memory_bytes < 0;
  if (!in_free_memory) model->set_recompute(config.recompute);
  return model;
}

TensorParallel parallelized(LanguageModel& model, const Config& config, const Mesh& mesh) {
  const ParallelConfig& parallel = config.parallel;
  const auto axes = mesh.axes();
  const bool has_axis =
      std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.name == "tp"; });
  const int ranks = has_axis ? mesh.group("tp").size() : 1;
  if (ranks == 1) return {};
  try {
    return parallelize(
        model, tensor_parallel_plan(model, shape_of(config), ranks, {.cuts_vocabulary = parallel.vocabulary}),
        mesh, {.sequence = parallel.sequence});
  } catch (const Error& error) {
    fail(error.kind(), config.place("parallel.tensor"), "parallel.tensor: " + text_without_kind(error));
  }
}

}  // namespace zero::training
