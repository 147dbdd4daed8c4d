#include "hf/model_directory.h"

#include <algorithm>
#include <set>

#include "base/shape_text.h"
#include "checkpoint/file_io.h"
#include "checkpoint/json.h"
#include "hf/architecture.h"
#include "zero/error.h"

namespace zero::hf {
namespace {

namespace fs = std::filesystem;
using checkpoint::in_quotes;
using checkpoint::Json;

constexpr int64_t kMostConfigBytes = 10'000'000;
constexpr size_t kMostListed = 20;  // problems in one message; the rest is counted

std::string listed(const std::vector<std::string>& problems) {
  std::string text;
  for (size_t i = 0; i < std::min(problems.size(), kMostListed); ++i)
    text.append(i ? ", " : "").append(problems[i]);
  if (problems.size() > kMostListed)
    text += " and " + std::to_string(problems.size() - kMostListed) + " more";
  return text;
}

fs::path config_path(const fs::path& directory) { return directory / "config.json"; }

Json read_object(const fs::path& path) {
  const fs::path real = fs::canonical(path);  // the Hub's cache consists of links
  Json json = parse_json(checkpoint::read_text(real, kMostConfigBytes), path.string());
  JsonPlace(json, path.string()).require_object();
  return json;
}

Json read_config(const fs::path& directory) {
  std::error_code ignored;
  require(fs::exists(config_path(directory), ignored), ErrorKind::Config, directory.string(),
          "there is no config.json", "name a model directory of Hugging Face's");
  return read_object(config_path(directory));
}

std::vector<int64_t> end_tokens_of(const JsonPlace& config) {
  const JsonPlace ids = config["eos_token_id"];
  if (ids.is_null()) return {};
  if (!ids.is_array()) return {ids.count()};
  std::vector<int64_t> tokens;
  for (const JsonPlace& id : ids.elements()) tokens.push_back(id.count());
  return tokens;
}

std::string_view torch_name(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32:
      return "float32";
    case Dtype::bf16:
      return "bfloat16";
    case Dtype::f16:
      return "float16";
    default:
      fail(ErrorKind::Unsupported, to_string(dtype), "weights are written as fp32, bf16 or fp16");
  }
}

const Architecture& architecture_of(const std::string& type, const std::string& place) {
  const Architecture* architecture = find_architecture(type);
  require(architecture, ErrorKind::Unsupported, place, "unknown architecture " + in_quotes(type),
          "known ones are " + architecture_names());
  return *architecture;
}

// Files of a bare model, without its head, leave the prefix out.
std::string bare_name(const Architecture& architecture, const std::string& name) {
  return name.starts_with(architecture.prefix) ? name.substr(architecture.prefix.size()) : name;
}

bool is_bare(const Weights& weights, const Architecture& architecture) {
  const std::vector<std::string> names = weights.names();
  return std::none_of(names.begin(), names.end(),
                      [&](const std::string& name) { return name.starts_with(architecture.prefix); });
}

bool is_readable(Dtype dtype) { return dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16; }

void add_kind(std::string& text, const char* what, const std::vector<std::string>& problems) {
  if (!problems.empty()) text.append(text.empty() ? "" : "; ").append(what).append(listed(problems));
}

}  // namespace

bool is_model_directory(const fs::path& directory) {
  std::error_code ignored;
  return fs::is_regular_file(config_path(directory), ignored) &&
         read_config(directory).contains("model_type");
}

ModelConfig read_model_config(const fs::path& directory, const ModelConfig& others) {
  const std::string place = config_path(directory).string();
  const Json json = read_config(directory);
  const Architecture& architecture = architecture_of(JsonPlace(json, place)["model_type"].string(), place);
  ModelConfig model;
  model.type = architecture.type;
  model.dropout = others.dropout;
  model.seed = others.seed;
  ConfigReader reader(json);
  architecture.read(reader, model);
  require(reader.problems().empty(), ErrorKind::Unsupported, place, listed(reader.problems()));
  return model;
}

std::vector<int64_t> read_end_tokens(const fs::path& directory) {
  std::error_code ignored;
  const fs::path generation = directory / kGenerationConfig;
  if (fs::exists(generation, ignored)) {
    const Json json = read_object(generation);
    const std::vector<int64_t> tokens = end_tokens_of({json, generation.string()});
    if (!tokens.empty()) return tokens;
  }
  const Json json = read_config(directory);
  return end_tokens_of({json, config_path(directory).string()});
}

SpecialIds read_special_ids(const fs::path& directory) {
  const Json json = read_config(directory);
  // Some models name no padding by -1.
  const auto is_id = [](const Json& value) { return value.is_number_integer(); };
  SpecialIds ids;
  for (const auto& [key, place] : JsonPlace(json, config_path(directory).string()).members()) {
    if (!key.ends_with("_token_id")) continue;
    const Json& value = place.value();
    const bool is_list = value.is_array() && std::all_of(value.begin(), value.end(), is_id);
    if (!is_list && !is_id(value) && !value.is_null()) place.expected("an id, a list of ids or null");
    ids[key] = value.dump();
  }
  return ids;
}

SpecialIds begin_and_end(int64_t token) {
  return {{"bos_token_id", std::to_string(token)}, {"eos_token_id", std::to_string(token)}};
}

std::string config_text(const ModelConfig& model, Dtype dtype, const SpecialIds& ids) {
  const Architecture& architecture = architecture_of(model.type, "model.type");
  nlohmann::ordered_json json = {{"architectures", {architecture.class_name}},
                                 {"model_type", architecture.type}};
  json.update(architecture.write(model));
  for (const auto& [key, value] : ids) json[key] = nlohmann::ordered_json::parse(value);
  json["torch_dtype"] = torch_name(dtype);
  return json.dump(2) + "\n";
}

std::string hf_name(const ModelConfig& model, std::string_view own_name) {
  return architecture_of(model.type, "model.type").hf_name(own_name);
}

void require_match(const Weights& weights, std::span<const WantedTensor> wanted,
                   const std::map<std::string, std::string>& names,
                   const std::function<bool(const std::string& stored_name)>& ignored) {
  std::set<std::string> known;
  std::vector<std::string> missing, extra, shapes, types;
  for (const WantedTensor& tensor : wanted) {
    const std::string& name = names.at(tensor.name);
    known.insert(name);
    const FileTensor* stored = weights.find(name);
    if (!stored) {
      missing.push_back(name);
    } else if (stored->shape != tensor.shape) {
      shapes.push_back(name + " " + shape_text(stored->shape) + " instead of " + shape_text(tensor.shape));
    } else if (!is_readable(stored->dtype)) {
      types.push_back(name + " as " + std::string(to_string(stored->dtype)));
    }
  }
  for (const std::string& name : weights.names())
    if (!known.contains(name) && !ignored(name)) extra.push_back(in_quotes(name));
  std::string text;
  add_kind(text, "missing: ", missing);
  add_kind(text, "not the model's: ", extra);
  add_kind(text, "of another shape: ", shapes);
  add_kind(text, "of a type that is not read (fp32, bf16, fp16 are): ", types);
  require(text.empty(), ErrorKind::Config, weights.directory().string(),
          "its tensors are not those of the model; " + text);
}

std::map<std::string, std::string> match(const Weights& weights, const ModelConfig& model,
                                         std::span<const WantedTensor> wanted) {
  const Architecture& architecture = architecture_of(model.type, "model.type");
  const bool bare = is_bare(weights, architecture);
  std::map<std::string, std::string> names;
  for (const WantedTensor& tensor : wanted) {
    const std::string name = architecture.hf_name(tensor.name);
    names[tensor.name] = bare ? bare_name(architecture, name) : name;
  }
  require_match(weights, wanted, names,
                [&](const std::string& name) { return architecture.ignored(name, model); });
  return names;
}

}  // namespace zero::hf
