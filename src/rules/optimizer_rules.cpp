#include "zero/optimizer_rules.h"

#include <cmath>
#include <limits>

#include "rules/check.h"
#include "zero/error.h"

namespace zero {
namespace {

void* address_of(OptimizerRule& rule) {
  return std::visit([](auto& one) -> void* { return &one; }, rule);
}

void check_number(const OptimizerRule& rule, const Hyperparameter& of, int which) {
  const double value = numbers_of(rule, of)[which];
  check(is_within(value, of.range), rule_name(rule), of.fields[which], value, to_string(of.range));
}

}  // namespace

std::string_view rule_name(const OptimizerRule& rule) {
  return std::visit([]<class R>(const R&) { return RuleRow<R>::name; }, rule);
}

std::span<const Hyperparameter> hyperparameters_of(const OptimizerRule& rule) {
  return std::visit(
      []<class R>(const R&) { return std::span<const Hyperparameter>(RuleRow<R>::hyperparameters); }, rule);
}

const Hyperparameter* hyperparameter(const OptimizerRule& rule, std::string_view key) {
  for (const Hyperparameter& one : hyperparameters_of(rule))
    if (one.key == key) return &one;
  return nullptr;
}

std::span<const std::string_view> rule_state_names(const OptimizerRule& rule) {
  return std::visit([]<class R>(const R& one) { return RuleRow<R>::states(one); }, rule);
}

int64_t rule_state_bytes(const OptimizerRule& rule) {
  return static_cast<int64_t>(rule_state_names(rule).size()) * (has_8bit_states(rule) ? 1 : kRuleStateBytes);
}

bool has_8bit_states(const OptimizerRule& rule) {
  return std::visit(
      []<class R>(const R& one) {
        if constexpr (requires { one.states_8bit; })
          return one.states_8bit;
        else
          return false;
      },
      rule);
}

bool sums_parameters(const OptimizerRule& rule) {
  return std::holds_alternative<LAMB>(rule) || std::holds_alternative<LARS>(rule) || is_factored(rule);
}

bool updates_by_element(const OptimizerRule& rule) {
  return !sums_parameters(rule) && !std::holds_alternative<Muon>(rule);
}

bool is_factored(const OptimizerRule& rule) { return std::holds_alternative<Adafactor>(rule); }

int64_t factored_numel(std::span<const int64_t> shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  if (shape.size() < 2 || numel == 0) return numel;
  return numel / shape[shape.size() - 1] + numel / shape[shape.size() - 2];
}

std::span<const NamedRule> named_rules() {
  static const std::array<NamedRule, 3> all{{
      {"TorchAdafactor", Adafactor{.eps = std::numeric_limits<float>::epsilon(), .torch_form = true}},
      {"FusedLAMB", LAMB{.undecayed_ratio = false}},
      {"NVLAMB", LAMB{}},
  }};
  return all;
}

double rule_lr(const OptimizerRule& rule) {
  return std::visit([](const auto& one) { return one.lr; }, rule);
}

std::optional<RuleConflict> conflict_of(const OptimizerRule& rule) {
  return std::visit([]<class R>(const R& one) { return RuleRow<R>::conflict(one); }, rule);
}

std::array<double, 2> numbers_of(const OptimizerRule& rule, const Hyperparameter& of) {
  OptimizerRule copy = rule;
  std::array<double, 2> values{};
  for (int i = 0; i < 2; ++i)
    if (of.numbers[i]) values[i] = *of.numbers[i](address_of(copy));
  return values;
}

bool flag_of(const OptimizerRule& rule, const Hyperparameter& of) {
  OptimizerRule copy = rule;
  return *of.flag(address_of(copy));
}

void set_numbers(OptimizerRule& rule, const Hyperparameter& of, std::array<double, 2> values) {
  for (int i = 0; i < 2; ++i)
    if (of.numbers[i]) *of.numbers[i](address_of(rule)) = values[i];
}

void set_flag(OptimizerRule& rule, const Hyperparameter& of, bool value) {
  *of.flag(address_of(rule)) = value;
}

bool is_within(double value, NumberRange range) {
  switch (range) {
    case NumberRange::NonNegative:
      return is_finite_non_negative(value);
    case NumberRange::Positive:
      return value > 0;
    case NumberRange::BelowOne:
      return is_beta(value);
    case NumberRange::Unit:
      return value >= 0 && value <= 1;
  }
  return false;
}

std::string_view to_string(NumberRange range) {
  switch (range) {
    case NumberRange::NonNegative:
      return kFiniteNonNegative;
    case NumberRange::Positive:
      return "a number > 0";
    case NumberRange::BelowOne:
      return kBetaRange;
    case NumberRange::Unit:
      return "a number from 0 to 1";
  }
  return "unknown";
}

void validate_rule(const OptimizerRule& rule) {
  for (const Hyperparameter& one : hyperparameters_of(rule))
    for (int i = 0; i < 2; ++i)
      if (one.numbers[i]) check_number(rule, one, i);
  if (const auto conflict = conflict_of(rule))
    fail(ErrorKind::Config, rule_name(rule),
         std::string(conflict->key) + " is " + std::string(conflict->value) + ", expected " +
             std::string(conflict->expected));
}

}  // namespace zero
