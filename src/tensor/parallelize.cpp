#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include "base/glob.h"
#include "seam/forward_context.h"
#include "tensor/dispatch.h"
#include "tensor/even_part.h"
#include "tensor/parallel_tensor.h"
#include "tensor/parts.h"
#include "tensor/plan.h"
#include "zero/error.h"
#include "zero/lazy.h"
#include "zero/parallel_layers.h"
#include "zero/tensor_parallel.h"

namespace zero {
namespace detail {

/// The tensors of a module that are cut, each once, with all the names that lead to it.
struct MarkedParameters {
  struct Parameter {
    at::Tensor tensor;
    Cut cut;
    bool is_gathered = false;
    std::vector<std::string> names;
    std::vector<int64_t> shape;  // of the whole
  };
  std::vector<Parameter> all;

  const Parameter* find(const std::string& name) const {
    for (const Parameter& parameter : all)
      if (std::find(parameter.names.begin(), parameter.names.end(), name) != parameter.names.end())
        return &parameter;
    return nullptr;
  }
};

namespace {

struct Decision {
  std::vector<MarkedParameters::Parameter> cut;
  std::vector<std::string> replicated;
};

struct ParsedRule {
  std::string pattern;
  PlanWord word;
  bool is_used = false;
};

std::vector<ParsedRule> parsed(const TensorParallelPlan& plan) {
  std::vector<ParsedRule> rules;
  for (const TensorParallelRule& rule : plan) {
    require(is_glob(rule.pattern), ErrorKind::Config, "tensor-parallel plan",
            "\"" + rule.pattern + "\" is no pattern of names");
    rules.push_back({rule.pattern, parse_plan_word(rule)});
  }
  return rules;
}

ParsedRule* rule_for(std::vector<ParsedRule>& rules, const std::string& name) {
  for (ParsedRule& rule : rules)
    if (glob_matches(rule.pattern, name)) return &rule;
  return nullptr;
}

// Rules of parallel layers for parameters that the plan does not name; a layer's count before those of the
// layers inside it.
TensorParallelPlan with_layers(const torch::nn::Module& module, TensorParallelPlan plan, int ranks) {
  for (const auto& item : module.named_modules()) {
    const auto* layer = dynamic_cast<const ParallelLayer*>(item.value().get());
    if (layer == nullptr) continue;
    const std::string prefix = item.key().empty() ? "" : item.key() + ".";
    for (const TensorParallelRule& rule : layer->tensor_parallel_rules(ranks)) {
      const std::string name = prefix + rule.pattern;
      const bool is_named = std::any_of(plan.begin(), plan.end(), [&](const TensorParallelRule& other) {
        return glob_matches(other.pattern, name);
      });
      if (!is_named) plan.push_back({name, rule.how});
    }
  }
  return plan;
}

// Looks at everything before anything is changed.
Decision decide(const torch::nn::Module& module, const TensorParallelPlan& plan, int ranks) {
  std::vector<ParsedRule> rules = parsed(plan);
  Decision decision;
  std::set<const c10::TensorImpl*> decided;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (!tensor.defined()) continue;
    require(!is_marked(tensor), ErrorKind::Usage, item.key(), "the module is tensor-parallel already");
    ParsedRule* rule = rule_for(rules, item.key());
    if (rule == nullptr) continue;
    rule->is_used = true;
    if (!decided.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const std::optional<Cut> cut = cut_of(rule->word, item.key(), tensor.sizes().vec(), ranks);
    if (cut)
      decision.cut.push_back(
          {tensor, *cut, rule->word.kind == PlanWord::Kind::Gathered, {}, tensor.sizes().vec()});
    else if (rule->word.kind != PlanWord::Kind::Whole)
      decision.replicated.push_back(item.key());
  }
  for (const ParsedRule& rule : rules)
    require(rule.is_used, ErrorKind::Config, "tensor-parallel plan",
            "\"" + rule.pattern + "\" matches no parameter of the module");
  for (MarkedParameters::Parameter& parameter : decision.cut)
    for (const auto& item : module.named_parameters())
      if (item.value().is_same(parameter.tensor)) parameter.names.push_back(item.key());
  return decision;
}

/// A forward of the module, entered again where a part of it is repeated.
class ParallelForward : public ForwardContext {
 public:
  ParallelForward(std::function<std::shared_ptr<void>()> enter, std::shared_ptr<TensorAxis> axis)
      : enter_(std::move(enter)), axis_(std::move(axis)) {}
  std::shared_ptr<void> enter() const override { return enter_(); }
  std::optional<KeptPart> part_of(const at::Tensor& tensor) const override {
    return even_part(tensor, axis_);
  }

 private:
  std::function<std::shared_ptr<void>()> enter_;
  std::shared_ptr<TensorAxis> axis_;
};

at::Tensor own_part(const at::Tensor& whole, const Cut& cut, Place place) {
  const auto part = [&] { return part_of(whole.detach(), cut, place).clone(at::MemoryFormat::Contiguous); };
  return is_lazy(whole) ? lazily_with(whole, part) : part();
}

}  // namespace
}  // namespace detail

using detail::MarkedParameters;

TensorParallel::Scope::Scope(const TensorParallel& parallel) : axis_(parallel.axis_) {
  if (!axis_) return;
  // Whoever replaced a parameter's memory (an engine does) took its mark away.
  for (const MarkedParameters::Parameter& parameter : parallel.parameters_->all)
    detail::mark_parameter(parameter.tensor, {axis_, parameter.cut, parameter.is_gathered});
  axis_->enter();
  const auto again = [parallel] { return std::make_shared<Scope>(parallel); };
  context_ = std::make_shared<detail::ForwardContextScope>(
      std::make_shared<const detail::ParallelForward>(again, axis_));
}

TensorParallel::Scope::~Scope() {
  if (axis_) axis_->leave();
}

void TensorParallel::add_to(EngineOptions& options) const {
  for (const auto& [name, part] : parts_) options.parts[name] = part;
  if (axis_) options.around_forward = [parallel = *this] { return std::make_shared<Scope>(parallel); };
}

at::Tensor TensorParallel::part_of(const std::string& name, const at::Tensor& whole) const {
  const auto* parameter = axis_ ? parameters_->find(name) : nullptr;
  return parameter == nullptr ? whole : detail::part_of(whole, parameter->cut, axis_->place());
}

at::Tensor TensorParallel::whole_of(const std::string& name, const at::Tensor& part) const {
  const auto* parameter = axis_ ? parameters_->find(name) : nullptr;
  if (parameter == nullptr) return part;
  const at::NoGradGuard no_grad;
  std::vector<int64_t> shape = parameter->shape;
  shape[static_cast<size_t>(parameter->cut.dim)] = detail::local_size(parameter->cut, axis_->place());
  return axis_->gather(part.view(shape), parameter->cut, /*for_parts=*/false);
}

TensorParallelReport TensorParallel::report() const {
  TensorParallelReport report{.cut = {}, .replicated = replicated_, .gathered = {}};
  if (!axis_) return report;
  for (const MarkedParameters::Parameter& parameter : parameters_->all)
    report.cut.push_back(parameter.names.front());
  report.gathered = axis_->gathered();
  return report;
}

TensorParallel parallelize(torch::nn::Module& module, const TensorParallelPlan& plan, const Mesh& mesh,
                           const TensorParallelOptions& options) {
  const auto axes = mesh.axes();
  const bool has_axis =
      std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.name == "tp"; });
  const int ranks = has_axis ? mesh.group("tp").size() : 1;
  detail::Decision decision = detail::decide(module, detail::with_layers(module, plan, ranks), ranks);
  TensorParallel result;
  if (ranks == 1) return result;
  const Group group = mesh.group("tp");
  detail::register_parallel_operators();
  result.axis_ = std::make_shared<detail::TensorAxis>(group, options.sequence, options.gather_unknown);
  result.replicated_ = std::move(decision.replicated);
  const detail::Place place = result.axis_->place();
  const at::NoGradGuard no_grad;
  for (const MarkedParameters::Parameter& parameter : decision.cut) {
    at::Tensor tensor = parameter.tensor;
    tensor.set_data(detail::own_part(tensor, parameter.cut, place));
    detail::mark_parameter(tensor, {result.axis_, parameter.cut, parameter.is_gathered});
    for (const std::string& name : parameter.names)
      result.parts_[name] = detail::part_description(parameter.shape, parameter.cut, place);
  }
  result.parameters_ = std::make_shared<const MarkedParameters>(MarkedParameters{std::move(decision.cut)});
  return result;
}

at::Tensor gathered(const at::Tensor& activation) {
  const detail::Value value = detail::value_of(activation);
  return value.cut ? value.axis->gather(value.tensor, value.cut, /*for_parts=*/false) : value.tensor;
}

bool is_tensor_parallel(const at::Tensor& tensor) { return detail::is_parallel(tensor); }

}  // namespace zero
