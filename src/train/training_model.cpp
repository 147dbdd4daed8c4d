#include "train/training_model.h"

#include <ATen/Context.h>

#include "zero/from_config.h"
#include "zero/lazy.h"

namespace zero::training {

std::shared_ptr<LanguageModel> training_model(const Config& config) {
  at::manual_seed(static_cast<uint64_t>(config.model.seed));
  std::shared_ptr<LanguageModel> model = lazily([&] { return make_language_model(shape_of(config)); });
  // On a tape of their own: where the model's values come from files, only the adapters' are drawn.
  lazily([&] { return add_adapters(*model, config.lora); });
  freeze(*model, config);
  model->set_recompute(config.recompute);
  return model;
}

}  // namespace zero::training
