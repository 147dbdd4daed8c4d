#include "stages/stage_parameters.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/glob.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

bool uses(const PipelineStage& stage, const std::string& name) {
  return std::any_of(stage.parameters.begin(), stage.parameters.end(),
                     [&](const std::string& pattern) { return glob_matches(pattern, name); });
}

std::vector<int> users_of(const std::vector<std::string>& names, const std::vector<PipelineStage>& stages) {
  std::vector<int> found;
  for (int s = 0; s < std::ssize(stages); ++s)
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return uses(stages[s], name); }))
      found.push_back(s);
  return found;
}

void collect(const ModuleSpec& spec, std::vector<const ParameterSpec*>& all) {
  for (const ParameterSpec& parameter : spec.parameters) all.push_back(&parameter);
  for (const ModuleSpec& child : spec.children) collect(child, all);
}

void keep(ModuleSpec& spec, const std::set<int64_t>& identities) {
  std::erase_if(spec.parameters,
                [&](const ParameterSpec& parameter) { return !identities.contains(parameter.identity); });
  for (ModuleSpec& child : spec.children) keep(child, identities);
}

void check_patterns(const std::vector<PipelineStage>& stages, const std::vector<std::string>& names) {
  for (size_t s = 0; s < stages.size(); ++s)
    for (const std::string& pattern : stages[s].parameters)
      require(std::any_of(names.begin(), names.end(),
                          [&](const std::string& name) { return glob_matches(pattern, name); }),
              ErrorKind::Config, "stage " + std::to_string(s),
              "its pattern \"" + pattern + "\" matches no parameter or buffer",
              names.empty() ? "" : "names look like \"" + names.front() + "\"");
}

/// Names that stand for one parameter, in module order.
struct Names {
  const ParameterSpec* spec;
  std::vector<std::string> all;
};

std::vector<Names> by_identity(const ModuleSpec& root) {
  std::vector<const ParameterSpec*> specs;
  collect(root, specs);
  std::vector<Names> found;
  for (const ParameterSpec* spec : specs) {
    const auto same = std::find_if(found.begin(), found.end(), [&](const Names& names) {
      return names.spec->identity == spec->identity;
    });
    if (same == found.end())
      found.push_back({spec, {spec->name}});
    else
      same->all.push_back(spec->name);
  }
  return found;
}

ParameterPart part_of(const ParameterSpec& spec, const std::vector<std::string>& replicated_over,
                      const std::map<std::string, ParameterPart>& parts) {
  const auto known = parts.find(spec.name);
  return known != parts.end() ? known->second
                              : ParameterPart{spec.shape, Box::whole(spec.shape), replicated_over};
}

}  // namespace

StageParameters parameters_of_stages(const torch::nn::Module& module,
                                     const std::vector<PipelineStage>& stages, const pipeline::Shape& shape,
                                     int rank, const std::vector<std::string>& replicated_over,
                                     const std::map<std::string, ParameterPart>& parts) {
  StageParameters result{.held = parameters_of(module), .parts = {}, .tied = {}};
  const std::vector<Names> parameters = by_identity(result.held.spec);
  std::vector<std::string> names;
  for (const Names& parameter : parameters)
    names.insert(names.end(), parameter.all.begin(), parameter.all.end());
  for (const auto& buffer : result.held.buffers) names.push_back(buffer.first);
  check_patterns(stages, names);

  std::set<int64_t> held;
  std::set<std::string> left_out;
  for (const Names& parameter : parameters) {
    const std::vector<int> users = users_of(parameter.all, stages);
    require(!users.empty(), ErrorKind::Config, parameter.all.front(), "no stage of the pipeline uses it",
            "name it in the stages' patterns");
    if (users.size() > 1 && parameter.spec->trainable) result.tied.push_back({parameter.all.front(), users});
    const bool is_here =
        std::any_of(users.begin(), users.end(), [&](int stage) { return shape.rank_of(stage) == rank; });
    if (!is_here) {
      left_out.insert(parameter.all.begin(), parameter.all.end());
      continue;
    }
    held.insert(parameter.spec->identity);
    ParameterPart part = part_of(*parameter.spec, replicated_over, parts);
    part.is_copy = shape.rank_of(users.front()) != rank;
    result.parts.emplace(parameter.all.front(), std::move(part));
  }
  // A part is asked for by each name of a parameter.
  for (const Names& parameter : parameters)
    if (const auto part = result.parts.find(parameter.all.front()); part != result.parts.end())
      for (const std::string& name : parameter.all) result.parts.emplace(name, part->second);

  keep(result.held.spec, held);
  for (const std::string& name : left_out) result.held.tensors.erase(name);
  return result;
}

}  // namespace zero::detail
