#include "optim/rules.h"

#include <ATen/ATen.h>

#include <cmath>

#include "optim/split_master.h"

namespace zero {
namespace {

using kernels::AdamScalars;
using kernels::LionScalars;
using kernels::SgdScalars;

float rounded(double value) { return static_cast<float>(value); }

template <class A>
Scalars adam_scalars(const A& spec, const Rates& rates, bool decoupled) {
  const Betas betas = rates.betas.value_or(Betas{spec.beta1, spec.beta2});
  const auto step = static_cast<double>(rates.step);
  const double correction1 = spec.bias_correction ? 1 - std::pow(betas.beta1, step) : 1;
  const double correction2 = spec.bias_correction ? 1 - std::pow(betas.beta2, step) : 1;
  AdamScalars scalars;
  scalars.gradient_scale = rounded(rates.gradient_scale);
  scalars.decay = rounded(decoupled ? 1 - rates.lr * rates.weight_decay : rates.weight_decay);
  scalars.beta1 = rounded(betas.beta1);
  scalars.one_minus_beta1 = rounded(1 - betas.beta1);
  scalars.beta2 = rounded(betas.beta2);
  scalars.one_minus_beta2 = rounded(1 - betas.beta2);
  scalars.inverse_root_correction = rounded(1 / std::sqrt(correction2));
  scalars.eps = rounded(spec.eps);
  scalars.step_size = rounded(rates.lr / correction1);
  scalars.decoupled = decoupled;
  return scalars;
}

Scalars rule_scalars(const AdamW& spec, const Rates& rates) { return adam_scalars(spec, rates, true); }
Scalars rule_scalars(const Adam& spec, const Rates& rates) { return adam_scalars(spec, rates, false); }

Scalars rule_scalars(const SGD& spec, const Rates& rates) {
  // torch's first step sets the buffer to the gradient, undamped.
  const bool first = rates.step == 1;
  SgdScalars scalars;
  scalars.gradient_scale = rounded(rates.gradient_scale);
  scalars.weight_decay = rounded(rates.weight_decay);
  scalars.momentum = first ? 0 : rounded(spec.momentum);
  scalars.one_minus_dampening = first ? 1 : rounded(1 - spec.dampening);
  scalars.nesterov_momentum = rounded(spec.momentum);
  scalars.lr = rounded(rates.lr);
  scalars.nesterov = spec.nesterov;
  return scalars;
}

Scalars rule_scalars(const Lion& spec, const Rates& rates) {
  const Betas betas = rates.betas.value_or(Betas{spec.beta1, spec.beta2});
  LionScalars scalars;
  scalars.gradient_scale = rounded(rates.gradient_scale);
  scalars.decay = rounded(1 - rates.lr * rates.weight_decay);
  scalars.beta1 = rounded(betas.beta1);
  scalars.one_minus_beta1 = rounded(1 - betas.beta1);
  scalars.beta2 = rounded(betas.beta2);
  scalars.one_minus_beta2 = rounded(1 - betas.beta2);
  scalars.lr = rounded(rates.lr);
  return scalars;
}

void run(const kernels::KernelSet& set, const kernels::Buffers& b, const AdamScalars& s, int64_t n) {
  set.adam(b, s, n);
}
void run(const kernels::KernelSet& set, const kernels::Buffers& b, const SgdScalars& s, int64_t n) {
  set.sgd(b, s, n);
}
void run(const kernels::KernelSet& set, const kernels::Buffers& b, const LionScalars& s, int64_t n) {
  set.lion(b, s, n);
}

at::Tensor scaled_gradient(const Piece& piece, float scale) {
  return piece.gradient.to(at::kFloat).mul(scale);
}

void run(const Piece& piece, const AdamScalars& s) {
  at::Tensor p = piece.master, m = piece.first, v = piece.second;
  at::Tensor g = scaled_gradient(piece, s.gradient_scale);
  if (s.decoupled) {
    p.mul_(s.decay);
  } else {
    g.add_(p, s.decay);
  }
  m.mul_(s.beta1).add_(g, s.one_minus_beta1);
  v.mul_(s.beta2).addcmul_(g, g, s.one_minus_beta2);
  p.addcdiv_(m, v.sqrt().mul_(s.inverse_root_correction).add_(s.eps), -s.step_size);
}

void run(const Piece& piece, const SgdScalars& s) {
  at::Tensor p = piece.master, buffer = piece.first;
  at::Tensor g = scaled_gradient(piece, s.gradient_scale).add_(p, s.weight_decay);
  if (buffer.defined()) {
    buffer.mul_(s.momentum).add_(g, s.one_minus_dampening);
    g = s.nesterov ? g.add_(buffer, s.nesterov_momentum) : buffer;
  }
  p.add_(g, -s.lr);
}

void run(const Piece& piece, const LionScalars& s) {
  at::Tensor p = piece.master, m = piece.first;
  const at::Tensor g = scaled_gradient(piece, s.gradient_scale);
  const at::Tensor direction = m.mul(s.beta1).add_(g, s.one_minus_beta1).sign_();
  p.mul_(s.decay).add_(direction, -s.lr);
  m.mul_(s.beta2).add_(g, s.one_minus_beta2);
}

}  // namespace

Scalars scalars_of(const RuleSpec& spec, const Rates& rates) {
  return std::visit([&](const auto& one) { return rule_scalars(one, rates); }, spec);
}

double weight_decay_of(const RuleSpec& spec) {
  return std::visit([](const auto& one) { return one.weight_decay; }, spec);
}

bool has_betas(const RuleSpec& spec) { return !std::holds_alternative<SGD>(spec); }

std::vector<std::string> state_names(const RuleSpec& spec) {
  if (const auto* sgd = std::get_if<SGD>(&spec)) {
    return sgd->momentum > 0 ? std::vector<std::string>{"momentum_buffer"} : std::vector<std::string>{};
  }
  if (std::holds_alternative<Lion>(spec)) return {"exp_avg"};
  return {"exp_avg", "exp_avg_sq"};
}

void update(const kernels::KernelSet& kernels, const kernels::Buffers& buffers, const Scalars& scalars,
            int64_t count) {
  std::visit([&](const auto& one) { run(kernels, buffers, one, count); }, scalars);
}

void update(const Piece& piece, const Scalars& scalars) {
  Piece whole = piece;
  const bool split = is_remainder(piece.master);
  if (split) {
    whole.master = at::empty_like(piece.master, at::kFloat);
    join_master(piece.parameter, piece.master, whole.master);
  }
  std::visit([&](const auto& one) { run(whole, one); }, scalars);
  if (split) return split_master(whole.master, piece.parameter, piece.master);
  if (piece.parameter.defined()) at::Tensor(piece.parameter).copy_(piece.master);
}

}  // namespace zero
