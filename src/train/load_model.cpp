#include "zero/load_model.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "checkpoint/index.h"
#include "checkpoint/json.h"
#include "engine/frozen.h"
#include "hf/model_directory.h"
#include "train/checkpoint_metadata.h"
#include "train/file_values.h"
#include "train/run_files.h"
#include "zero/checkpoint.h"
#include "zero/error.h"
#include "zero/hf_model.h"
#include "zero/lazy.h"
#include "zero/model_shape.h"

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

namespace {

constexpr int64_t kMostSampleTokens = 1024;  // of a model directory, whose context may be very long

bool has_tokenizer(const fs::path& directory) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.json", "vocab.json", "tokenizer.model"})
    if (fs::exists(directory / name, ignored)) return true;
  return false;
}

SavedModel model_directory(const fs::path& directory) {
  SavedModel saved{
      .checkpoint = directory, .config = {}, .vocabulary = {}, .end_token = {}, .hugging_face = true};
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
  saved.end_token = hf::read_end_token(directory);
  if (!has_tokenizer(directory)) return saved;
  config.data.tokenizer = directory.string();
  saved.vocabulary = Tokenizer::load(directory).vocabulary();
  return saved;
}

void read_from_files(const InitialValues& values, const std::string& name, const at::Tensor& parameter) {
  constexpr int64_t kPieceNumel = 1 << 18;
  const at::Tensor flat = parameter.view({-1}), buffer = at::empty({kPieceNumel}, at::kFloat);
  for (int64_t begin = 0; begin < flat.numel(); begin += kPieceNumel) {
    const at::Tensor piece = buffer.narrow(0, 0, std::min(kPieceNumel, flat.numel() - begin));
    values.read(name, begin, piece);
    flat.narrow(0, begin, piece.numel()).copy_(piece);
  }
}

// The frozen parameters that a checkpoint leaves out, with what they must be; see engine/frozen.h.
std::map<std::string, uint64_t> left_out_of(const CheckpointReader& reader, const std::string& place) {
  const checkpoint::Json about = checkpoint::parse_object(reader.metadata(), place);
  const checkpoint::Json engine = about.value("engine", checkpoint::Json::object());
  std::map<std::string, uint64_t> frozen;
  if (!engine.is_object() || !engine.contains("frozen_from")) return frozen;
  const auto& stored = checkpoint::member(engine, "frozen", checkpoint::Json::value_t::object, place);
  for (const auto& [name, fingerprint] : stored.items())
    frozen[name] = checkpoint::hex_value(fingerprint, "frozen", place);
  return frozen;
}

// What a checkpoint leaves out comes from the directory that training began with, if it began with one.
void read_left_out(LanguageModel& model, const SavedModel& saved,
                   const std::map<std::string, uint64_t>& left_out) {
  if (left_out.empty()) return;
  require(!saved.config.model.from.empty(), ErrorKind::Unsupported, saved.checkpoint.string(),
          "it leaves out frozen parameters that were drawn, not read from a model directory",
          "train with checkpoint.trainable_only false");
  Config config = saved.config;
  config.lora.from.clear();  // adapters are in the checkpoint
  const auto values = training::file_values_of(config);
  for (const auto& parameter : model.named_parameters()) {
    const auto expected = left_out.find(parameter.key());
    if (expected == left_out.end()) continue;
    read_from_files(*values, parameter.key(), parameter.value());
    require(detail::frozen_fingerprint(parameter.value()) == expected->second, ErrorKind::Config,
            config.model.from,
            parameter.key() + " is not the one that " + saved.checkpoint.string() + " was trained with");
  }
}

}  // namespace

SavedModel find_model(const fs::path& model) {
  std::error_code ignored;
  const bool is_checkpoint = fs::exists(model / checkpoint::kIndexName, ignored);
  // Both a run and a model directory have a config.json; only the latter's has a model_type.
  if (!is_checkpoint && is_hf_directory(model)) return model_directory(model);
  const fs::path checkpoint = find_checkpoint(model);
  const training::CheckpointMetadata metadata = training::read_metadata(checkpoint);
  return {.checkpoint = checkpoint,
          .config = metadata.config,
          .vocabulary = metadata.vocabulary,
          .end_token = {},
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
  for (auto& parameter : model->named_parameters())
    parameter.value().set_data(at::empty(parameter.value().sizes(), dtype));
  if (saved.hugging_face) {
    const auto values = training::file_values_of(saved.config);
    for (const auto& parameter : model->named_parameters())
      read_from_files(*values, parameter.key(), parameter.value());
    return model;
  }
  const CheckpointReader reader(saved.checkpoint);
  const std::string place = saved.checkpoint.string();
  const std::map<std::string, uint64_t> left_out = left_out_of(reader, place);
  std::set<std::string> names;
  for (const auto& parameter : model->named_parameters()) {
    if (left_out.contains(parameter.key())) continue;
    check_parameter(reader, place, parameter.key(), parameter.value());
    names.insert(parameter.key());
  }
  check_nothing_else(reader, place, names);
  for (const auto& parameter : model->named_parameters())
    if (names.contains(parameter.key())) read_parameter(reader, place, parameter.key(), parameter.value());
  read_left_out(*model, saved, left_out);
  return model;
}

}  // namespace zero
