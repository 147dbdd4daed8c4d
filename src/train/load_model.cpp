#include "zero/load_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>

#include "checkpoint/index.h"
#include "hf/model_directory.h"
#include "saving/frozen.h"
#include "train/checkpoint_metadata.h"
#include "train/mapped_model.h"
#include "train/older_checkpoint.h"
#include "train/run_files.h"
#include "train/saved_values.h"
#include "zero/checkpoint.h"
#include "zero/error.h"
#include "zero/hf_model.h"
#include "zero/lazy.h"
#include "zero/model_shape.h"

namespace zero {
namespace {

namespace fs = std::filesystem;

fs::path newest_of_run(const fs::path& run) {
  const Config config = training::read_config(run);
  const fs::path checkpoints = run / config.checkpoint.directory;
  fs::path newest = latest_checkpoint(checkpoints);
  require(!newest.empty(), ErrorKind::Config, checkpoints.string(), "it holds no checkpoint",
          "train first, with checkpoint.save_at_end or checkpoint.interval_steps");
  return newest;
}

}  // namespace

fs::path find_checkpoint(const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(path / checkpoint::kIndexName, ignored)) return path;
  if (fs::exists(path / training::kConfigFile, ignored)) return newest_of_run(path);
  require(fs::is_directory(path, ignored), ErrorKind::Config, path.string(),
          fs::exists(path, ignored) ? "it is a file, not a run directory or a checkpoint"
                                    : "there is no such directory",
          "name the directory of a run, or one of its checkpoints");
  fs::path newest = latest_checkpoint(path);
  require(!newest.empty(), ErrorKind::Config, path.string(), "it is neither a run directory nor a checkpoint",
          "name the directory of a run, or one of its checkpoints");
  return newest;
}

namespace {

constexpr int64_t kMostSampleTokens = 1024;  // of a model directory, whose context may be very long

SavedModel model_directory(const fs::path& directory) {
  SavedModel saved{
      .checkpoint = directory, .config = {}, .vocabulary = {}, .end_tokens = {}, .hugging_face = true};
  Config& config = saved.config;
  config.model.from = directory.string();
  config = adopt_model(config);
  config.train_micro_batch_size = 1;
  config.data.sequence_length = std::min(config.model.context_length, kMostSampleTokens);
  const hf::Weights weights(directory);
  const auto names = weights.names();
  config.precision.bf16 = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return weights.find(name)->dtype == Dtype::bf16;
  });
  config = resolve(config, 1);
  saved.end_tokens = hf::read_end_tokens(directory);
  if (!Tokenizer::is_in(directory)) return saved;
  config.data.tokenizer = directory.string();
  saved.vocabulary = Tokenizer::load(directory).vocabulary();
  return saved;
}

}  // namespace

SavedModel find_model(const fs::path& model) {
  std::error_code ignored;
  const bool is_checkpoint = fs::exists(model / checkpoint::kIndexName, ignored);
  // Both a run and a model directory have a config.json; only the latter's has a model_type.
  if (!is_checkpoint && is_hf_directory(model)) return model_directory(model);
  const fs::path checkpoint = find_checkpoint(model);
  training::CheckpointMetadata metadata;
  training::naming_older(checkpoint, [&] { metadata = training::read_metadata(checkpoint); });
  // A checkpoint is one model however many ranks had it: whoever reads it shards it over "dp".
  metadata.config.parallel.pipeline = 1;
  return {.checkpoint = checkpoint,
          .config = metadata.config,
          .vocabulary = metadata.vocabulary,
          .end_tokens = {},
          .step = metadata.step};
}

std::shared_ptr<LanguageModel> load_model(const SavedModel& saved, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  // Lazily: values that would be drawn only to be overwritten cost time, and fp32 memory whatever the type.
  const std::shared_ptr<LanguageModel> model = lazily([&] {
    auto built = make_language_model(shape_of(saved.config));
    add_adapters(*built, saved.config.lora);
    return built;
  });
  const training::SavedValues saved_values = training::values_of(saved);
  for (auto& item : model->named_parameters()) {
    const std::string& name = item.key();
    at::Tensor parameter = item.value();
    parameter.set_data(at::empty(parameter.sizes(), dtype));
    training::read_parameter(*saved_values.values, name, parameter);
    if (saved_values.left_out.contains(name))
      saved_values.require_same(saved, name, detail::frozen_fingerprint(parameter));
  }
  return model;
}

}  // namespace zero
