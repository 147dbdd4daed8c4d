#include "zero/model_spec.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error_text.h"
#include "base/glob.h"
#include "sharding/model_parameters.h"
#include "tensor/parts.h"
#include "tensor/plan.h"
#include "zero/error.h"
#include "zero/language_model.h"
#include "zero/language_model_plan.h"
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

/// Cuts the parameters of a tree as parallelize() cuts those of its module.
class SpecCutter {
 public:
  SpecCutter(const TensorParallelPlan& plan, detail::Place place) : place_(place) {
    for (const TensorParallelRule& rule : plan)
      rules_.emplace_back(rule.pattern, detail::parse_plan_word(rule));
  }

  void cut(ModuleSpec& module) {
    for (ParameterSpec& parameter : module.parameters) cut(parameter);
    for (ModuleSpec& child : module.children) cut(child);
  }

 private:
  void cut(ParameterSpec& parameter) {
    // Tied names by the first that the plan matches.
    const auto known = parts_.find(parameter.identity);
    std::optional<ParameterPart> part;
    if (parameter.identity >= 0 && known != parts_.end())
      part = known->second;
    else
      for (const auto& [pattern, word] : rules_) {
        if (!glob_matches(pattern, parameter.name)) continue;
        const auto how = detail::cut_of(word, parameter.name, parameter.shape, place_.ranks);
        if (how) part = detail::part_description(parameter.shape, *how, place_);
        if (parameter.identity >= 0) parts_[parameter.identity] = part;
        break;
      }
    if (!part) return;
    parameter.part = *part;
    parameter.shape = part->shape();
  }

  detail::Place place_;
  std::vector<std::pair<std::string, detail::PlanWord>> rules_;
  std::map<int64_t, std::optional<ParameterPart>> parts_;
};

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

ModuleSpec tensor_part(const Config& config, const ModuleSpec& whole, int rank) {
  const ParallelConfig& parallel = config.parallel;
  require(rank >= 0 && rank < parallel.tensor, ErrorKind::Usage, "tensor_part",
          "expected a rank below " + std::to_string(parallel.tensor) + ", got " + std::to_string(rank));
  ModuleSpec part = whole;
  if (parallel.tensor == 1) return part;
  const std::shared_ptr<LanguageModel> model = lazily([&] { return make_language_model(shape_of(config)); });
  if (config.lora.rank > 0) lazily([&] { return add_adapters(*model, config.lora); });
  try {
    const TensorParallelPlan plan = tensor_parallel_plan(*model, shape_of(config), parallel.tensor,
                                                         {.cuts_vocabulary = parallel.vocabulary});
    SpecCutter(plan, {rank, parallel.tensor}).cut(part);
  } catch (const Error& error) {
    fail(error.kind(), config.place("parallel.tensor"), "parallel.tensor: " + text_without_kind(error));
  }
  return part;
}

int64_t numel_of(const ModuleSpec& module) {
  std::set<int64_t> counted;
  return add_numel(module, counted);
}

}  // namespace zero
