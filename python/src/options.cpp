#include "options.h"

#include <functional>
#include <map>

#include "zero/error.h"
#include "zero/torch_dtype.h"

namespace zero::python {
namespace py = pybind11;

namespace {

[[noreturn]] void unknown(const std::string& what, const std::string& key,
                          const std::vector<std::string>& known) {
  std::string text = what + " has no '" + key + "'; it has";
  for (const std::string& name : known) text += (name == known.front() ? " " : ", ") + name;
  throw py::type_error(text);
}

template <class Rule>
void set_number(Rule& rule, const Hyperparameter& row, const py::handle& value) {
  using Kind = Hyperparameter::Kind;
  if (row.kind == Kind::Switch) {
    *row.flag(&rule) = py::cast<bool>(value);
  } else if (row.kind == Kind::Number) {
    *row.numbers[0](&rule) = py::cast<double>(value);
  } else {
    const auto pair = py::cast<std::pair<double, double>>(value);
    *row.numbers[0](&rule) = pair.first;
    *row.numbers[1](&rule) = pair.second;
  }
}

template <class Rule>
OptimizerSpec filled(const py::kwargs& numbers) {
  Rule rule;
  std::vector<std::string> known;
  for (const Hyperparameter& row : RuleRow<Rule>::hyperparameters) known.emplace_back(row.key);
  for (const auto& [key, value] : numbers) {
    const std::string name = py::str(key);
    bool is_known = false;
    for (const Hyperparameter& row : RuleRow<Rule>::hyperparameters) {
      if (row.key != name) continue;
      set_number(rule, row, value);
      is_known = true;
    }
    if (!is_known) unknown(std::string(RuleRow<Rule>::name), name, known);
  }
  const OptimizerSpec spec = rule;
  validate(spec);
  return spec;
}

ParameterGroup group_of(const py::dict& given) {
  ParameterGroup group;
  for (const auto& [key, value] : given) {
    const std::string name = py::str(key);
    if (name == "pattern")
      group.pattern = py::cast<std::string>(value);
    else if (name == "lr")
      group.lr = py::cast<double>(value);
    else if (name == "lr_scale")
      group.lr_scale = py::cast<double>(value);
    else if (name == "weight_decay")
      group.weight_decay = py::cast<double>(value);
    else if (name == "elementwise")
      group.elementwise = py::cast<bool>(value);
    else
      unknown("a group", name, {"pattern", "lr", "lr_scale", "weight_decay", "elementwise"});
  }
  return group;
}

using Setter = std::function<void(EngineOptions&, const py::handle&)>;

template <class T>
Setter plain(T EngineOptions::*field) {
  return [field](EngineOptions& options, const py::handle& value) { options.*field = py::cast<T>(value); };
}
Setter type(std::optional<DtypeOption> EngineOptions::*field) {
  return [field](EngineOptions& options, const py::handle& value) {
    if (!value.is_none()) options.*field = py::cast<at::ScalarType>(value);
  };
}

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> all{
      {"stage", plain(&EngineOptions::stage)},
      {"dtype", type(&EngineOptions::dtype)},
      {"buffer_dtype", type(&EngineOptions::buffer_dtype)},
      {"accumulation_steps", plain(&EngineOptions::accumulation_steps)},
      {"reduce_once", plain(&EngineOptions::reduce_once)},
      {"gradient_clipping", plain(&EngineOptions::gradient_clipping)},
      {"groups",
       [](EngineOptions& options, const py::handle& value) {
         for (const py::handle group : value) options.groups.push_back(group_of(py::cast<py::dict>(group)));
       }},
      {"communication_dtype", type(&EngineOptions::communication_dtype)},
      {"accumulation_dtype",
       [](EngineOptions& options, const py::handle& value) {
         options.accumulation_dtype = py::cast<at::ScalarType>(value);
       }},
      {"broadcast_initial_values", plain(&EngineOptions::broadcast_initial_values)},
      {"gradient_predivide_factor", plain(&EngineOptions::gradient_predivide_factor)},
      {"split_master", plain(&EngineOptions::split_master)},
      {"shard_group_ranks", plain(&EngineOptions::shard_group_ranks)},
      {"group_numel", plain(&EngineOptions::group_numel)},
      {"persistent_numel", plain(&EngineOptions::persistent_numel)},
      {"cpu_operators", plain(&EngineOptions::cpu_operators)},
      {"budget_bytes", plain(&EngineOptions::budget_bytes)},
      {"prefetch_bytes", plain(&EngineOptions::prefetch_bytes)},
      {"reduce_bucket_numel", plain(&EngineOptions::reduce_bucket_numel)},
      {"overlap", plain(&EngineOptions::overlap)},
      {"share_parameters", plain(&EngineOptions::share_parameters)},
      {"row_gradients", plain(&EngineOptions::row_gradients)},
      {"gathered_ratio", plain(&EngineOptions::gathered_ratio)},
  };
  return all;
}

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for_each_rule([&]<class Rule>(const Rule&) { names.emplace_back(RuleRow<Rule>::name); });
  return names;
}

OptimizerSpec optimizer_of(const std::string& type, const py::kwargs& numbers) {
  std::optional<OptimizerSpec> spec;
  for_each_rule([&]<class Rule>(const Rule&) {
    if (RuleRow<Rule>::name == type) spec = filled<Rule>(numbers);
  });
  require(spec.has_value(), ErrorKind::Config, "optimizer", "no optimizer \"" + type + "\"");
  return *spec;
}

EngineOptions engine_options_of(const py::kwargs& fields) {
  EngineOptions options;
  for (const auto& [key, value] : fields) {
    const std::string name = py::str(key);
    const auto found = setters().find(name);
    if (found == setters().end()) {
      std::vector<std::string> known;
      for (const auto& setter : setters()) known.push_back(setter.first);
      unknown("zero.Engine", name, known);
    }
    found->second(options, value);
  }
  return options;
}

}  // namespace zero::python
