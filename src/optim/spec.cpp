// What an optimizer spec means before any tensor is there: checks, base rate, bytes of state.
#include "optim/check.h"
#include "optim/torch_optimizer.h"
#include "zero/error.h"
#include "zero/optimizer.h"

namespace zero {
namespace {

template <class A>
void validate_adam(const A& spec, std::string_view name) {
  check(is_finite_non_negative(spec.lr), name, "lr", spec.lr, kFiniteNonNegative);
  check(is_beta(spec.beta1), name, "beta1", spec.beta1, kBetaRange);
  check(is_beta(spec.beta2), name, "beta2", spec.beta2, kBetaRange);
  check(is_finite_non_negative(spec.eps), name, "eps", spec.eps, kFiniteNonNegative);
  check(is_finite_non_negative(spec.weight_decay), name, "weight_decay", spec.weight_decay,
        kFiniteNonNegative);
}

void validate_one(const AdamW& spec) { validate_adam(spec, "AdamW"); }
void validate_one(const Adam& spec) { validate_adam(spec, "Adam"); }

void validate_one(const SGD& spec) {
  check(is_finite_non_negative(spec.lr), "SGD", "lr", spec.lr, kFiniteNonNegative);
  check(is_finite_non_negative(spec.momentum), "SGD", "momentum", spec.momentum, kFiniteNonNegative);
  check(std::isfinite(spec.dampening), "SGD", "dampening", spec.dampening, "a finite number");
  check(is_finite_non_negative(spec.weight_decay), "SGD", "weight_decay", spec.weight_decay,
        kFiniteNonNegative);
  if (!spec.nesterov) return;
  check(spec.momentum > 0, "SGD", "momentum", spec.momentum, "> 0 with nesterov");
  check(spec.dampening == 0, "SGD", "dampening", spec.dampening, "0 with nesterov");
}

void validate_one(const Lion& spec) {
  check(is_finite_non_negative(spec.lr), "Lion", "lr", spec.lr, kFiniteNonNegative);
  check(is_beta(spec.beta1), "Lion", "beta1", spec.beta1, kBetaRange);
  check(is_beta(spec.beta2), "Lion", "beta2", spec.beta2, kBetaRange);
  check(is_finite_non_negative(spec.weight_decay), "Lion", "weight_decay", spec.weight_decay,
        kFiniteNonNegative);
}

void validate_one(const TorchOptimizer& spec) {
  require(static_cast<bool>(spec.make), ErrorKind::Config, "TorchOptimizer", "make is empty",
          "give a function that builds the optimizer from parameter groups");
}

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

std::string_view name_of(const OptimizerSpec& spec) {
  return std::visit(Overloaded{[](const AdamW&) -> std::string_view { return "AdamW"; },
                               [](const Adam&) -> std::string_view { return "Adam"; },
                               [](const SGD&) -> std::string_view { return "SGD"; },
                               [](const Lion&) -> std::string_view { return "Lion"; },
                               [](const TorchOptimizer&) -> std::string_view { return "TorchOptimizer"; }},
                    spec);
}

void validate(const OptimizerSpec& spec) {
  std::visit([](const auto& one) { validate_one(one); }, spec);
}

double base_lr(const OptimizerSpec& spec) {
  return std::visit(Overloaded{[](const TorchOptimizer& torch) { return torch_base_lr(torch); },
                               [](const auto& one) { return one.lr; }},
                    spec);
}

std::optional<int64_t> optimizer_state_bytes(const OptimizerSpec& spec) {
  using Bytes = std::optional<int64_t>;
  return std::visit(
      Overloaded{[](const AdamW&) -> Bytes { return 8; }, [](const Adam&) -> Bytes { return 8; },
                 [](const SGD& sgd) -> Bytes { return sgd.momentum > 0 ? 4 : 0; },
                 [](const Lion&) -> Bytes { return 4; },
                 [](const TorchOptimizer& torch) { return torch_state_bytes(torch); }},
      spec);
}

}  // namespace zero
