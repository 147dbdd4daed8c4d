#include "export/consolidate.h"

#include <algorithm>
#include <map>
#include <set>
#include <system_error>

#include "base/output_file.h"
#include "checkpoint/directory.h"
#include "checkpoint/file_io.h"
#include "checkpoint/json.h"
#include "checkpoint/left_out.h"
#include "checkpoint/names.h"
#include "export/convert.h"
#include "export/frozen_files.h"
#include "export/weight_files.h"
#include "export/whole_model.h"
#include "hf/adapter.h"
#include "hf/model_directory.h"
#include "hf/weights.h"
#include "zero/checkpoint.h"
#include "zero/config.h"
#include "zero/error.h"
#include "zero/tokenizer.h"

namespace zero {
namespace {

namespace fs = std::filesystem;
using checkpoint::kBufferPrefix;
using checkpoint::kModelPrefix;
using exporting::ExportedTensor;
using exporting::FrozenFiles;

constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json",    "tokenizer_config.json",   "vocab.json",      "merges.txt",
    "added_tokens.json", "special_tokens_map.json", "tokenizer.model", "chat_template.jinja"};
constexpr int64_t kMostFileBytes = int64_t{1} << 30;  // of a file that is copied

/// What a run's checkpoint knows of itself.
struct Origin {
  Config config;
  Vocabulary vocabulary;
};

std::optional<Origin> origin_of(const CheckpointReader& reader, const std::string& place) {
  const nlohmann::json metadata = parse_json(reader.metadata(), place);
  const JsonPlace user = JsonPlace(metadata, place)["user"];
  if (!user.is_object() || user["config"].is_null()) return std::nullopt;
  const JsonPlace config = user["config"], vocabulary = user["vocabulary"];
  config.require_object();
  return Origin{
      .config = parse_config(config.value().dump(), place),
      .vocabulary = {.size = vocabulary["size"].count(), .fingerprint = vocabulary["fingerprint"].uint64()}};
}

// What a checkpoint of trained parameters alone leaves out; nothing where it is whole.
std::optional<FrozenFiles> frozen_files_of(const CheckpointReader& reader, const Origin* origin,
                                           const ModuleSpec& model, const ConsolidateOptions& options,
                                           const std::string& place) {
  const auto left_out = checkpoint::left_out_of_metadata(reader.metadata(), place);
  const bool began_with_files = origin && !origin->config.model.from.empty();
  require(left_out || !options.from || began_with_files, ErrorKind::Config, "--from",
          place + " leaves no parameters out, and its training began without a model directory");
  if (!left_out) return std::nullopt;
  const fs::path directory = options.from.value_or(origin ? origin->config.model.from : "");
  require(
      origin && !directory.empty(), ErrorKind::Unsupported, place,
      "it holds the trained parameters only, the frozen ones are " + checkpoint::in_quotes(left_out->from),
      "consolidate a checkpoint that was saved without checkpoint.trainable_only");
  return std::make_optional<FrozenFiles>(directory, *left_out, origin->config, model, place);
}

// Readers would take the adapters for strangers, and the model beneath them for the trained one.
void require_mergeable(const Origin& origin, const ConsolidateOptions& options, const std::string& place) {
  require(origin.config.lora.rank == 0 || options.merge_adapters, ErrorKind::Unsupported, place,
          "it holds low-rank adapters beside the model, which are not part of its weights",
          "merge them with --merge-adapters, or load the model with PEFT, from the run's directory adapter/");
}

// Of the parameter `own`, if it has one.
std::optional<exporting::LowRank> adapter_of(const CheckpointReader& reader, const Config& config,
                                             const std::string& own) {
  constexpr std::string_view kWeight = ".weight";
  if (config.lora.rank == 0 || !own.ends_with(kWeight)) return std::nullopt;
  const std::string layer = std::string(kModelPrefix) + own.substr(0, own.size() - kWeight.size());
  exporting::LowRank adapter{.a = layer + ".lora_A.weight",
                             .b = layer + ".lora_B.weight",
                             .scale = config.lora.alpha / static_cast<double>(config.lora.rank),
                             .in_out = hf::weights_are_in_out(config.model)};
  if (!reader.tensors().contains(adapter.a) && !reader.tensors().contains(adapter.b)) return std::nullopt;
  return adapter;
}

Dtype exported_dtype(Dtype stored, const ConsolidateOptions& options) {
  return options.dtype && exporting::is_convertible(stored, *options.dtype) ? *options.dtype : stored;
}

// Of a model of `zero train`.
std::vector<ExportedTensor> model_tensors(const CheckpointReader& reader, const Origin& origin,
                                          const FrozenFiles* frozen, const ConsolidateOptions& options) {
  std::map<std::string, ExportedTensor> tensors;  // by their own names
  const auto add = [&](const std::string& own, Dtype dtype, const std::vector<int64_t>& shape) {
    if (hf::is_adapter(own)) return;  // merged
    tensors[own] = {.tensor = {.name = hf::hf_name(origin.config.model, own),
                               .dtype = exported_dtype(dtype, options),
                               .shape = shape},
                    .stored = std::string(kModelPrefix) + own,
                    .adapter = adapter_of(reader, origin.config, own)};
  };
  for (const auto& [name, stored] : reader.tensors())
    if (name.starts_with(kModelPrefix)) add(name.substr(kModelPrefix.size()), stored.dtype, stored.shape);
  if (frozen != nullptr)
    for (const auto& [own, parameter] : frozen->parameters()) {
      require(!tensors.contains(own), ErrorKind::Corrupt, own, "it is stored, and said to be left out");
      add(own, frozen->dtype(), parameter.shape);
      tensors.at(own).left_out = own;
    }
  std::vector<ExportedTensor> result;
  for (auto& [own, tensor] : tensors) result.push_back(std::move(tensor));
  return result;
}

// Of a checkpoint without a configuration: parameters and buffers under their own names.
std::vector<ExportedTensor> plain_tensors(const CheckpointReader& reader, const ConsolidateOptions& options) {
  std::vector<ExportedTensor> tensors;
  for (const auto& [name, stored] : reader.tensors())
    for (const std::string_view prefix : {kModelPrefix, kBufferPrefix})
      if (name.starts_with(prefix))
        tensors.push_back({.tensor = {.name = name.substr(prefix.size()),
                                      .dtype = exported_dtype(stored.dtype, options),
                                      .shape = stored.shape},
                           .stored = name});
  return tensors;
}

// The type that config.json names: that of all tensors, or of most memory.
Dtype main_dtype(std::span<const ExportedTensor> tensors) {
  std::map<Dtype, int64_t> bytes;
  for (const ExportedTensor& tensor : tensors) bytes[tensor.tensor.dtype] += hf::data_bytes(tensor.tensor);
  return std::max_element(bytes.begin(), bytes.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

// The model directory that training began with; nothing where there was none, or where --from "" does
// without.
std::optional<fs::path> base_of(const Origin& origin, const ConsolidateOptions& options) {
  if (origin.config.model.from.empty()) return std::nullopt;
  const fs::path base = options.from.value_or(origin.config.model.from);
  if (base.empty()) return std::nullopt;
  require(hf::is_model_directory(base), ErrorKind::Config, base.string(),
          "training began with a model directory there, and there is none now: the ids of its special "
          "tokens, its "
          "generation_config.json and its tokenizer would be lost",
          "name where it is with --from DIR; \"\" does without");
  return base;
}

// Where the files of the tokenizer are; nothing where the run had none.
std::optional<fs::path> tokenizer_of(const Origin& origin, const std::optional<fs::path>& base,
                                     const ConsolidateOptions& options) {
  fs::path path = options.tokenizer.value_or(origin.config.data.tokenizer);
  if (path.empty() && !options.tokenizer && base && Tokenizer::is_in(*base)) path = *base;
  if (path.empty()) return std::nullopt;
  std::error_code ignored;
  require(fs::exists(path, ignored), ErrorKind::Config, path.string(), "there is no tokenizer",
          "name its directory with --tokenizer DIR; \"\" leaves it out");
  return path;
}

// The ids of the special tokens: as the model directory had them, unless the model has learnt other tokens
// since.
hf::SpecialIds special_ids_of(const Vocabulary& trained, const std::optional<fs::path>& base,
                              const std::optional<fs::path>& tokenizer_path,
                              const std::optional<Tokenizer>& tokenizer) {
  if (base) {
    const bool same =
        tokenizer_path == base || !Tokenizer::is_in(*base) || Tokenizer::load(*base).vocabulary() == trained;
    if (same) return hf::read_special_ids(*base);
  }
  if (tokenizer && tokenizer->end_of_text()) return hf::begin_and_end(*tokenizer->end_of_text());
  return {};
}

/// The directory being made, gone unless it is published.
class Output {
 public:
  explicit Output(const fs::path& target)
      : output_(absent_or_empty(target), UnfinishedOutput::Type::Directory) {}

  fs::path file(const std::string& name) {
    files_.push_back(name);
    return output_.path() / name;
  }
  std::vector<std::string> publish() {
    output_.publish();
    return files_;
  }

 private:
  static fs::path absent_or_empty(fs::path target) {
    if (!target.has_filename()) target = target.parent_path();  // "out/"
    std::error_code error;
    const bool in_use = fs::exists(fs::symlink_status(target, error)) &&
                        !(fs::is_directory(target, error) && fs::is_empty(target, error));
    require(!in_use, ErrorKind::Config, target.string(), "it exists and is no empty directory",
            "give another output directory");
    error.clear();
    if (target.has_parent_path()) fs::create_directories(target.parent_path(), error);
    require(!error, ErrorKind::Io, target.string(), "cannot create: " + error.message());
    return target;
  }

  UnfinishedOutput output_;
  std::vector<std::string> files_;
};

// Of a directory; false where there is no such file. What a directory of Hugging Face's cache holds are
// links.
bool copy_file(const fs::path& directory, const char* name, Output& out) {
  std::error_code ignored;
  if (!fs::is_regular_file(directory / name, ignored)) return false;
  checkpoint::write_text(out.file(name),
                         checkpoint::read_text(fs::canonical(directory / name), kMostFileBytes));
  return true;
}

// transformers guesses the class from config.json, which says nothing of a tokenizer that comes from
// elsewhere.
std::string tokenizer_class(const std::set<std::string>& files) {
  if (files.contains("tokenizer.json")) return "PreTrainedTokenizerFast";
  return files.contains("tokenizer.model") ? "LlamaTokenizer" : "GPT2Tokenizer";
}

void copy_tokenizer(const fs::path& from, Output& out) {
  const bool is_directory = fs::is_directory(from);
  std::set<std::string> copied;
  for (const char* name : kTokenizerFiles)
    if (is_directory || from.filename() == name)
      if (copy_file(is_directory ? from : from.parent_path(), name, out)) copied.insert(name);
  if (!copied.contains("tokenizer_config.json"))
    checkpoint::write_text(out.file("tokenizer_config.json"),
                           "{\"tokenizer_class\": \"" + tokenizer_class(copied) + "\"}\n");
}

void write_weights(exporting::TensorSource source, std::span<const ExportedTensor> tensors,
                   const ConsolidateOptions& options, Output& out) {
  const bool is_pytorch = options.format == ConsolidateOptions::Format::Pytorch;
  std::vector<hf::NewTensor> plain;
  for (const ExportedTensor& tensor : tensors) plain.push_back(tensor.tensor);
  std::vector<hf::OutputFile> files = hf::split_into_files(plain, options.most_file_bytes);
  for (hf::OutputFile& file : files) {
    if (is_pytorch) file.name = "pytorch_" + fs::path(file.name).stem().string() + ".bin";
    const auto part = tensors.first(file.tensors.size());
    tensors = tensors.subspan(file.tensors.size());
    (is_pytorch ? exporting::write_pytorch : exporting::write_safetensors)(out.file(file.name), part, source);
  }
  if (files.size() > 1)
    checkpoint::write_text(
        out.file(is_pytorch ? "pytorch_model.bin.index.json" : "model.safetensors.index.json"),
        hf::index_text(files));
}

}  // namespace

Consolidated exporting::consolidate(const fs::path& checkpoint, const fs::path& out,
                                    const ConsolidateOptions& options,
                                    const std::function<ModuleSpec(const Config&)>& spec_of) {
  require(options.most_file_bytes >= 1, ErrorKind::Config, "--max-shard-size", "less than one byte");
  require(!options.dtype || exporting::is_convertible(Dtype::f32, *options.dtype), ErrorKind::Config,
          "--dtype", "expected fp32, bf16 or fp16");
  const CheckpointReader reader(checkpoint);
  const std::optional<Origin> origin = origin_of(reader, checkpoint.string());
  if (origin) require_mergeable(*origin, options, checkpoint.string());
  const ModuleSpec model = origin ? spec_of(origin->config) : ModuleSpec{};
  const std::optional<FrozenFiles> frozen =
      frozen_files_of(reader, origin ? &*origin : nullptr, model, options, checkpoint.string());
  const FrozenFiles* const frozen_files = frozen ? &*frozen : nullptr;
  if (origin) exporting::require_whole_model(reader, model, frozen_files, checkpoint.string());
  const std::vector<ExportedTensor> tensors =
      origin ? model_tensors(reader, *origin, frozen_files, options) : plain_tensors(reader, options);
  require(!tensors.empty(), ErrorKind::Config, checkpoint.string(), "it holds no parameters");

  const std::optional<fs::path> base = origin ? base_of(*origin, options) : std::nullopt;
  const std::optional<fs::path> tokenizer_path = origin ? tokenizer_of(*origin, base, options) : std::nullopt;
  std::optional<Tokenizer> tokenizer;
  if (tokenizer_path) {
    tokenizer = Tokenizer::load(*tokenizer_path);
    require(tokenizer->vocabulary() == origin->vocabulary, ErrorKind::Config, tokenizer_path->string(),
            "it is not the tokenizer that the model was trained with",
            "name that one with --tokenizer DIR; \"\" leaves it out");
  }
  hf::SpecialIds ids;
  if (origin) ids = special_ids_of(origin->vocabulary, base, tokenizer_path, tokenizer);
  Output output(out);
  if (origin)
    checkpoint::write_text(output.file("config.json"),
                           hf::config_text(origin->config.model, main_dtype(tensors), ids));
  if (tokenizer_path) copy_tokenizer(*tokenizer_path, output);
  // The model's own says what its special tokens are and how it is sampled; else the tokenizer's directory
  // may have one.
  if (!(base && copy_file(*base, hf::kGenerationConfig, output)) && tokenizer_path &&
      fs::is_directory(*tokenizer_path))
    copy_file(*tokenizer_path, hf::kGenerationConfig, output);
  write_weights(exporting::TensorSource(reader, frozen_files), tensors, options, output);

  Consolidated result{.tensors = std::ssize(tensors), .step = reader.step(), .is_model = origin.has_value()};
  for (const ExportedTensor& tensor : tensors) result.bytes += hf::data_bytes(tensor.tensor);
  result.files = output.publish();
  return result;
}

}  // namespace zero
