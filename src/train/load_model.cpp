#include "zero/load_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <set>
#include <string>
#include <string_view>

#include "checkpoint/index.h"
#include "train/checkpoint_metadata.h"
#include "train/run_files.h"
#include "zero/checkpoint.h"
#include "zero/error.h"

namespace zero {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModel = "model/";

// The types that the engine stores parameters in.
at::ScalarType stored_type(Dtype dtype, const std::string& place) {
  switch (dtype) {
    case Dtype::f32:
      return at::kFloat;
    case Dtype::bf16:
      return at::kBFloat16;
    case Dtype::f16:
      return at::kHalf;
    case Dtype::f64:
      return at::kDouble;
    default:
      fail(ErrorKind::Unsupported, place, "stored as " + std::string(to_string(dtype)));
  }
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) text.append(text.size() > 1 ? ", " : "").append(std::to_string(size));
  return text + "]";
}

void check_parameter(const CheckpointReader& reader, const std::string& place, const std::string& name,
                     const at::Tensor& parameter) {
  const auto found = reader.tensors().find(std::string(kModel) + name);
  require(found != reader.tensors().end(), ErrorKind::Config, place,
          "it is of another model: it has no parameter " + name);
  require(found->second.shape == parameter.sizes().vec(), ErrorKind::Config, place,
          "it is of another model: " + name + " has shape " + shape_text(found->second.shape) +
              ", expected " + shape_text(parameter.sizes().vec()));
}

void check_nothing_else(const CheckpointReader& reader, const std::string& place,
                        const std::set<std::string>& names) {
  for (const auto& [name, stored] : reader.tensors()) {
    const bool known = name.starts_with(kModel) && names.contains(name.substr(kModel.size()));
    const bool other =
        name.starts_with("optimizer/") || name.starts_with("rank/") || name.starts_with("buffer/");
    require(known || other, ErrorKind::Config, place,
            "it is of another model: it holds " + name + ", which this one does not have");
  }
}

void read_parameter(const CheckpointReader& reader, const std::string& place, const std::string& name,
                    const at::Tensor& parameter) {
  const std::string stored_name = std::string(kModel) + name;
  const at::ScalarType type = stored_type(reader.tensors().at(stored_name).dtype, place + ": " + name);
  const bool straight = type == parameter.scalar_type() && parameter.is_contiguous();
  at::Tensor values = straight ? parameter : at::empty(parameter.sizes(), type);
  reader.read(stored_name, 0, values.numel(), values.mutable_data_ptr());
  if (!straight) parameter.copy_(values);
}

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
  require(fs::is_directory(path, ignored), ErrorKind::Config, path.string(), "there is no such directory",
          "name the directory of a run, or one of its checkpoints");
  fs::path newest = latest_checkpoint(path);
  require(!newest.empty(), ErrorKind::Config, path.string(), "it is neither a run directory nor a checkpoint",
          "name the directory of a run, or one of its checkpoints");
  return newest;
}

SavedModel find_model(const fs::path& model) {
  const fs::path checkpoint = find_checkpoint(model);
  const training::CheckpointMetadata metadata = training::read_metadata(checkpoint);
  return {.checkpoint = checkpoint,
          .config = metadata.config,
          .vocabulary = metadata.vocabulary,
          .step = metadata.step};
}

Gpt2 load_model(const fs::path& checkpoint, const Gpt2Shape& shape, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const CheckpointReader reader(checkpoint);
  Gpt2 model(shape);
  model->to(dtype);
  const std::string place = checkpoint.string();
  std::set<std::string> names;
  for (const auto& parameter : model->named_parameters()) {
    check_parameter(reader, place, parameter.key(), parameter.value());
    names.insert(parameter.key());
  }
  check_nothing_else(reader, place, names);
  for (const auto& parameter : model->named_parameters())
    read_parameter(reader, place, parameter.key(), parameter.value());
  return model;
}

}  // namespace zero
