#include "plan/model_parts.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>

#include "base/glob.h"
#include "zero/error.h"

namespace zero {
namespace {

const ModuleSpec* find_blocks(const ModuleSpec& module) {
  if (module.is_list) return &module;
  for (const ModuleSpec& child : module.children)
    if (const ModuleSpec* found = find_blocks(child)) return found;
  return nullptr;
}

void add_loose(const ModuleSpec& module, const ModuleSpec* blocks, std::vector<const ParameterSpec*>& loose) {
  if (&module == blocks) return;
  for (const ParameterSpec& parameter : module.parameters) loose.push_back(&parameter);
  for (const ModuleSpec& child : module.children) add_loose(child, blocks, loose);
}

// GPT-2's, Llama's and GPT-NeoX's.
bool is_one_of(std::initializer_list<const char*> patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const char* pattern) { return glob_matches(pattern, name); });
}

}  // namespace

ModelParts parts_of_model(const ModuleSpec& model) {
  const ModuleSpec* blocks = find_blocks(model);
  require(blocks != nullptr, ErrorKind::Internal, "pipeline", "the model has no list of blocks");
  ModelParts parts{.blocks = blocks->name, .each_block = {}, .first = {}, .last = {}};
  for (const ModuleSpec& block : blocks->children) parts.each_block.push_back(&block);
  std::vector<const ParameterSpec*> loose, embedding;
  add_loose(model, blocks, loose);
  bool has_head = false;
  for (const ParameterSpec* parameter : loose) {
    const std::string& name = parameter->name;
    const bool is_embedding = is_one_of({"wte.*", "model.embed_tokens.*", "gpt_neox.embed_in.*"}, name);
    if (is_embedding) embedding.push_back(parameter);
    has_head = has_head || is_one_of({"lm_head.*", "embed_out.*"}, name);
    (is_embedding || is_one_of({"wpe.*"}, name) ? parts.first : parts.last).push_back(parameter);
  }
  if (!has_head) parts.last.insert(parts.last.end(), embedding.begin(), embedding.end());
  return parts;
}

std::vector<std::vector<std::string>> stage_patterns(const ModuleSpec& model,
                                                     const std::vector<int64_t>& blocks) {
  const ModelParts parts = parts_of_model(model);
  std::vector<std::vector<std::string>> patterns(blocks.size());
  int64_t at = 0;
  for (size_t s = 0; s < blocks.size(); ++s)
    for (const int64_t end = at + blocks[s]; at < end; ++at)
      patterns[s].push_back(parts.blocks + "." + std::to_string(at) + ".*");
  for (const ParameterSpec* parameter : parts.first) patterns.front().push_back(parameter->name);
  for (const ParameterSpec* parameter : parts.last) patterns.back().push_back(parameter->name);
  return patterns;
}

namespace {

/// Names, and modules of which all parameters count.
struct HeldNames {
  std::set<std::string, std::less<>> parameters, modules;
  bool contain(std::string_view name) const {
    if (parameters.contains(name)) return true;
    for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.', dot + 1))
      if (modules.contains(name.substr(0, dot))) return true;
    return false;
  }
};

void keep_held(ModuleSpec& module, const HeldNames& held) {
  std::erase_if(module.parameters,
                [&](const ParameterSpec& parameter) { return !held.contain(parameter.name); });
  for (ModuleSpec& child : module.children) keep_held(child, held);
}

}  // namespace

void keep_parameters(ModuleSpec& module, const std::vector<std::string>& patterns) {
  HeldNames held;
  for (const std::string& pattern : patterns)
    if (pattern.ends_with(".*"))
      held.modules.insert(pattern.substr(0, pattern.size() - 2));
    else
      held.parameters.insert(pattern);
  keep_held(module, held);
}

}  // namespace zero
