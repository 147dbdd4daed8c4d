#include "zero/model_spec.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/glob.h"
#include "sharding/model_parameters.h"
#include "zero/error.h"
#include "zero/language_model.h"
#include "zero/lazy.h"

namespace zero {
namespace {

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return glob_matches(pattern, name); });
}

void collect_names(const ModuleSpec& module, std::vector<std::string>& names) {
  for (const ParameterSpec& parameter : module.parameters) names.push_back(parameter.name);
  for (const ModuleSpec& child : module.children) collect_names(child, names);
}

void check_patterns(const Config& config, const char* key, const std::vector<std::string>& patterns,
                    const std::vector<std::string>& names, const char* what) {
  for (const std::string& pattern : patterns) {
    const bool any = std::any_of(names.begin(), names.end(),
                                 [&](const std::string& name) { return glob_matches(pattern, name); });
    require(any, ErrorKind::Config, config.place(key),
            std::string(key) + ": expected a pattern of " + what + " names, got \"" + pattern +
                "\", which matches none",
            "names look like \"" + names.front() + "\" and \"" + names.back() + "\"");
  }
}

bool is_trained(const Config& config, const std::string& name) {
  if (config.lora.rank > 0) return name.ends_with(".lora_A.weight") || name.ends_with(".lora_B.weight");
  return !matches_any(config.frozen, name) &&
         (config.trainable.empty() || matches_any(config.trainable, name));
}

// How many parameters are trained.
int64_t mark_trained(ModuleSpec& module, const Config& config) {
  int64_t trained = 0;
  for (ParameterSpec& parameter : module.parameters) {
    parameter.trainable = is_trained(config, parameter.name);
    trained += parameter.trainable ? 1 : 0;
  }
  for (ModuleSpec& child : module.children) trained += mark_trained(child, config);
  return trained;
}

int64_t add_numel(const ModuleSpec& module, std::set<int64_t>& counted) {
  int64_t numel = 0;
  for (const ParameterSpec& parameter : module.parameters)
    if (parameter.identity < 0 || counted.insert(parameter.identity).second) numel += parameter.numel();
  for (const ModuleSpec& child : module.children) numel += add_numel(child, counted);
  return numel;
}

}  // namespace

ModuleSpec module_spec(const torch::nn::Module& module) { return detail::parameters_of(module).spec; }

ModuleSpec model_spec(const ModelShape& shape) {
  return module_spec(*lazily([&] { return make_language_model(shape); }));
}

ModuleSpec trained_spec(const Config& config) {
  const std::shared_ptr<LanguageModel> model = lazily([&] { return make_language_model(shape_of(config)); });
  std::vector<std::string> names;
  collect_names(module_spec(*model), names);
  check_patterns(config, "frozen", config.frozen, names, "parameter");
  check_patterns(config, "trainable", config.trainable, names, "parameter");
  if (config.lora.rank > 0) {
    check_patterns(config, "lora.targets", config.lora.targets, linear_layer_names(*model), "linear layers'");
    lazily([&] { return add_adapters(*model, config.lora); });
  }
  ModuleSpec spec = module_spec(*model);
  require(mark_trained(spec, config) > 0, ErrorKind::Config, config.place("frozen"),
          "frozen: expected patterns that leave something to train, got ones that match every parameter");
  return spec;
}

int64_t numel_of(const ModuleSpec& module) {
  std::set<int64_t> counted;
  return add_numel(module, counted);
}

}  // namespace zero
