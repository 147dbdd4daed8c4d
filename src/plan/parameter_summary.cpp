#include "zero/parameter_summary.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <tuple>

#include "base/glob.h"
#include "plan/state_bytes.h"
#include "zero/error.h"

namespace zero {
namespace {

/// A name's words, and those of its components that are numbers apart.
struct Name {
  std::string words;  // with # in place of numbers
  std::vector<std::string> numbers;

  explicit Name(const std::string& name) {
    for (size_t begin = 0; begin <= name.size();) {
      const size_t end = std::min(name.find('.', begin), name.size());
      const std::string word = name.substr(begin, end - begin);
      const bool is_number = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char letter) {
        return std::isdigit(letter) != 0;
      });
      if (begin > 0) words += '.';
      words += is_number ? "#" : word;
      if (is_number) numbers.push_back(word);
      begin = end + 1;
    }
  }
};

/// Numbers that are the same in all names stay.
std::string pattern_of(const std::string& words, const std::vector<std::set<std::string>>& numbers) {
  std::string pattern;
  size_t next = 0;
  for (const char letter : words) {
    if (letter != '#') {
      pattern += letter;
      continue;
    }
    const std::set<std::string>& seen = numbers[next++];
    pattern += seen.size() == 1 ? *seen.begin() : "*";
  }
  return pattern;
}

// The group whose pattern matches first: its index, or the number of groups.
size_t group_of(const UnitParameter& parameter, const std::vector<ParameterGroup>& groups) {
  size_t group = 0;
  while (group < groups.size() && !glob_matches(groups[group].pattern, parameter.name)) ++group;
  return group;
}

void require_matches(const Plan& plan, const std::vector<ParameterGroup>& groups) {
  for (const ParameterGroup& group : groups) {
    const bool any = std::any_of(plan.units.begin(), plan.units.end(), [&](const UnitLayout& unit) {
      return std::any_of(unit.parameters.begin(), unit.parameters.end(), [&](const UnitParameter& parameter) {
        return glob_matches(group.pattern, parameter.name);
      });
    });
    require(any, ErrorKind::Config, "parameter group \"" + group.pattern + "\"", "matches no parameter",
            "patterns cover the full dotted name, e.g. \"*.bias\"");
  }
}

std::string master_of(const Plan& plan, const EngineOptions& options, Dtype dtype) {
  const int64_t bytes = master_bytes_of(plan.state, dtype);
  if (bytes == 0) return options.stochastic_rounding && dtype == Dtype::bf16 ? "none, rounded" : "itself";
  return bytes == 2 ? "16 bits more" : "fp32";
}

double decay_of(const OptimizerRule& rule) {
  return std::visit([](const auto& one) { return one.weight_decay; }, rule);
}

/// What the rule does with a parameter: its name, and what the rate and the decay become.
void apply_rule(const OptimizerRule& rule, const UnitParameter& parameter, bool is_elementwise,
                ParameterSummary& line) {
  line.rule = std::string(rule_name(rule)) + (has_8bit_states(rule) ? " (8 bits)" : "");
  const size_t dims = parameter.shape.size();
  if (const auto* muon = std::get_if<Muon>(&rule)) {
    const bool is_matrix = dims == 2 && parameter.numel > 0 && !is_elementwise;
    line.rule = is_matrix ? "Muon (orthogonalised)" : "Muon (AdamW)";
    if (!is_matrix) line.lr *= muon->adamw_lr_scale;
  }
  if (is_factored(rule)) line.rule += dims < 2 ? " (unfactored)" : " (factored)";
  if (std::holds_alternative<LARS>(rule) && dims < 2) {
    line.rule = "LARS (ratio 1)";
    line.weight_decay = 0;
  }
}

ParameterSummary line_of(const Plan& plan, const EngineOptions& options,
                         const std::optional<OptimizerRule>& rule, double base_lr, const UnitLayout& unit,
                         const UnitParameter& parameter) {
  ParameterSummary line{
      .count = 1, .numel = parameter.numel, .rule = "frozen", .dtype = unit.dtype, .master = {}};
  if (!unit.trainable) return line;
  const size_t number = group_of(parameter, options.groups);
  const ParameterGroup* const group = number < options.groups.size() ? &options.groups[number] : nullptr;
  line.rule = "TorchOptimizer";
  line.group = group != nullptr ? group->pattern : "";
  line.lr = base_lr;
  line.weight_decay = rule ? decay_of(*rule) : 0;
  if (group != nullptr) {
    line.lr = group->lr.value_or(base_lr * group->lr_scale);
    line.weight_decay = group->weight_decay.value_or(line.weight_decay);
  }
  line.master = master_of(plan, options, unit.dtype);
  if (rule) apply_rule(*rule, parameter, group != nullptr && group->elementwise, line);
  return line;
}

}  // namespace

std::vector<ParameterSummary> summarise_parameters(const Plan& plan, const EngineOptions& options,
                                                   const std::optional<OptimizerRule>& rule, double base_lr) {
  require_matches(plan, options.groups);
  using Key = std::tuple<std::string, std::string, std::string, double, double, Dtype, std::string>;
  struct Alike {
    ParameterSummary line;
    std::string words;
    std::vector<std::set<std::string>> numbers;
  };
  std::map<Key, size_t> index;
  std::vector<Alike> all;
  for (const UnitLayout& unit : plan.units)
    for (const UnitParameter& parameter : unit.parameters) {
      const Name name(parameter.name);
      ParameterSummary line = line_of(plan, options, rule, base_lr, unit, parameter);
      const Key key{name.words, line.rule, line.group, line.lr, line.weight_decay, line.dtype, line.master};
      const auto [found, is_new] = index.emplace(key, all.size());
      if (is_new) {
        all.push_back({line, name.words, std::vector<std::set<std::string>>(name.numbers.size())});
      } else {
        all[found->second].line.count++;
        all[found->second].line.numel += line.numel;
      }
      for (size_t i = 0; i < name.numbers.size(); ++i) all[found->second].numbers[i].insert(name.numbers[i]);
    }
  std::vector<ParameterSummary> summary;
  for (Alike& one : all) {
    one.line.pattern = pattern_of(one.words, one.numbers);
    summary.push_back(std::move(one.line));
  }
  return summary;
}

}  // namespace zero
