#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <map>
#include <optional>
#include <set>

#include "base/strict_json.h"
#include "tensor/plan.h"
#include "zero/error.h"
#include "zero/hf_tensor_parallel_plan.h"

namespace zero {
namespace {

using Words = std::map<std::string, std::string>;

Words words_in(std::string_view text, const std::string& place) {
  const nlohmann::json document = parse_json(text, place);
  JsonPlace object(document, place);
  object.require_object();
  if (object["base_model_tp_plan"].is_object()) object = object["base_model_tp_plan"];
  Words words;
  for (const auto& [name, word] : object.members()) words[name] = word.string();
  return words;
}

void check_words(const Words& words, const std::string& place) {
  std::string unknown;
  for (const auto& [name, word] : words) try {
      detail::parse_plan_word({name, word});
    } catch (const Error&) {
      unknown += (unknown.empty() ? "\"" : ", \"") + word + "\" of " + name;
    }
  require(unknown.empty(), ErrorKind::Config, place, "there is no word " + unknown, detail::kPlanWords);
}

// "layers.3.weight" -> "layers.*.weight"
std::string with_stars(const std::string& name) {
  std::string result;
  for (const char c : name) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit)
      result += c;
    else if (result.empty() || result.back() != '*')
      result += '*';
  }
  return result;
}

// The entry for a parameter, by its name, or by its module's.
Words::const_iterator entry_of(const Words& words, const std::string& name, const std::string& prefix) {
  const auto find = [&](const std::string& key) {
    const std::string starred = with_stars(key);
    if (const auto found = words.find(key); found != words.end()) return found;
    return words.find(starred);
  };
  const auto with_module = [&](const std::string& key) {
    const auto found = find(key);
    const size_t dot = key.rfind('.');
    return found != words.end() || dot == std::string::npos ? found : find(key.substr(0, dot));
  };
  if (const auto found = with_module(name); found != words.end()) return found;
  return !prefix.empty() && name.starts_with(prefix) ? with_module(name.substr(prefix.size())) : words.end();
}

bool is_embedding(const torch::nn::Module& root, const std::string& parameter) {
  const size_t dot = parameter.rfind('.');
  if (dot == std::string::npos) return dynamic_cast<const torch::nn::EmbeddingImpl*>(&root) != nullptr;
  const auto modules = root.named_modules("", /*include_self=*/false);
  const auto* module = modules.find(parameter.substr(0, dot));
  return module != nullptr && dynamic_cast<const torch::nn::EmbeddingImpl*>(module->get()) != nullptr;
}

// Nothing: the parameter is whole whatever its module's word says.
std::optional<std::string> word_for(const torch::nn::Module& module, const std::string& name,
                                    const at::Tensor& parameter, const std::string& word) {
  const detail::PlanWord parsed = detail::parse_plan_word({name, word});
  if (parsed.kind != detail::PlanWord::Kind::Rows) return word;
  if (is_embedding(module, name)) return "vocab";
  if (parameter.dim() < 2) return std::nullopt;
  return word;
}

}  // namespace

TensorParallelPlan hf_tensor_parallel_plan(std::string_view json, const torch::nn::Module& module,
                                           const HfTensorParallelPlanOptions& options) {
  const Words words = words_in(json, options.place);
  check_words(words, options.place);
  TensorParallelPlan plan;
  std::set<std::string> used;
  for (const auto& item : module.named_parameters()) {
    const auto found = entry_of(words, item.key(), options.prefix);
    if (found == words.end()) continue;
    used.insert(found->first);
    if (const auto word = word_for(module, item.key(), item.value(), found->second))
      plan.push_back({item.key(), *word});
  }
  std::string unmatched;
  for (const auto& [name, word] : words)
    if (!used.contains(name)) unmatched += (unmatched.empty() ? "" : ", ") + name;
  require(unmatched.empty(), ErrorKind::Config, options.place, "the module has no " + unmatched,
          "remove what belongs to another model, or say what stands before its names (prefix)");
  return plan;
}

}  // namespace zero
