#pragma once
// The arithmetic of every optimizer, each written once over a vector type V: `V::Reg` holds elements of one
// range, and every operation rounds to fp32. CPU kernels take V from scalar.h, avx2.cpp and avx512.cpp,
// CUDA's from scalar.h, and any other device takes whole tensors (tensor_passes.h).
//
// A rule says
//   Scalars                    what it needs besides the elements; computed in double and rounded once
//   scalars(rule, rates)
//   update(scalars, elements)  the new master and states. One pass over memory
// and one that needs sums over whole parameters, however those are cut (LAMB's norms), in two phases:
//   kSums                      how many
//   direction(...)             the new states, and what is added to the sums; the master stays
//   with_sums(scalars, sums)   the scalars once the sums over all ranks are there
//   update(...)                the new master from the new states; the gradient is not read, states stay
// or, where new states need the sums too (LARS), with
//   kMeasures                  direction() changes nothing and reads no states; update() is as without sums
// They are inlined whatever the compiler thinks: they are the insides of loops.

#include <cmath>
#include <cstdint>

#include "base/any_device.h"
#include "zero/lr_schedule.h"
#include "zero/optimizer_rules.h"

namespace zero::kernels {

/// What one parameter's update depends on besides the rule's own numbers.
struct Rates {
  double lr = 0;
  double weight_decay = 0;
  double gradient_scale = 1;
  int64_t step = 1;  // this parameter's, from 1
  int dims = 2;      // of the parameter
  std::optional<Betas> betas = {};
};

/// Elements of one range: gradient is read, master and states are what they were and become what they are.
/// kStates of the states are there.
template <class V, int kStates>
struct Elements {
  typename V::Reg gradient, master;
  typename V::Reg states[kStates > 0 ? kStates : 1];
};

/// Whether the first phase of a rule with sums only measures.
template <class Rule>
constexpr bool only_measures() {
  if constexpr (requires { Rule::kMeasures; }) return Rule::kMeasures;
  return false;
}

ZERO_ANY_DEVICE inline float rounded(double value) { return static_cast<float>(value); }

/// The schedule's, or else the rule's own.
template <class Rule>
Betas betas_of(const Rule& rule, const Rates& rates) {
  return rates.betas.value_or(Betas{rule.beta1, rule.beta2});
}

/// What the two moments are divided by, as they begin with zeros: 1 - beta^step, or 1 where the rule has
/// none.
struct BiasCorrections {
  double first = 1, second = 1;
};
template <class Rule>
BiasCorrections bias_corrections(const Rule& rule, const Betas& betas, int64_t step) {
  if (!rule.bias_correction) return {};
  const auto count = static_cast<double>(step);
  return {1 - std::pow(betas.beta1, count), 1 - std::pow(betas.beta2, count)};
}

struct AdamScalars {
  float gradient_scale = 1;
  float decay = 0;  // decoupled: 1 - lr * weight_decay; else weight_decay
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float inverse_root_correction = 1;  // 1 / sqrt(1 - beta2^step)
  float eps = 0;
  float step_size = 0;  // lr / (1 - beta1^step)
};

/// torch::optim::Adam and AdamW:  decoupled: p *= decay;  else: g += decay * p
///   m = beta1 m + one_minus_beta1 g
///   v = beta2 v + one_minus_beta2 g g
///   p -= step_size m / (sqrt(v) inverse_root_correction + eps)
template <class Rule, bool kDecoupled>
struct AdamArithmetic {
  using Scalars = AdamScalars;
  static constexpr int kSums = 0, kLeastStates = 2, kMostStates = 2;

  static Scalars scalars(const Rule& rule, const Rates& rates) {
    const Betas betas = betas_of(rule, rates);
    const auto [correction1, correction2] = bias_corrections(rule, betas, rates.step);
    return {.gradient_scale = rounded(rates.gradient_scale),
            .decay = rounded(kDecoupled ? 1 - rates.lr * rates.weight_decay : rates.weight_decay),
            .beta1 = rounded(betas.beta1),
            .one_minus_beta1 = rounded(1 - betas.beta1),
            .beta2 = rounded(betas.beta2),
            .one_minus_beta2 = rounded(1 - betas.beta2),
            .inverse_root_correction = rounded(1 / std::sqrt(correction2)),
            .eps = rounded(rule.eps),
            .step_size = rounded(rates.lr / correction1)};
  }

  template <class V, int kStates>
  ZERO_ANY_DEVICE [[gnu::always_inline]] static inline void update(const Scalars& s,
                                                                   Elements<V, kStates>& x) {
    auto g = V::mul(x.gradient, V::set(s.gradient_scale));
    if constexpr (kDecoupled) {
      x.master = V::mul(x.master, V::set(s.decay));
    } else {
      g = V::add(g, V::mul(V::set(s.decay), x.master));
    }
    auto& [m, v] = x.states;
    m = V::add(V::mul(m, V::set(s.beta1)), V::mul(V::set(s.one_minus_beta1), g));
    v = V::add(V::mul(v, V::set(s.beta2)), V::mul(V::mul(V::set(s.one_minus_beta2), g), g));
    const auto root = V::mul(V::sqrt(v), V::set(s.inverse_root_correction));
    x.master = V::sub(x.master, V::div(V::mul(V::set(s.step_size), m), V::add(root, V::set(s.eps))));
  }
};

template <class Rule>
struct Arithmetic;

template <>
struct Arithmetic<AdamW> : AdamArithmetic<AdamW, true> {};
template <>
struct Arithmetic<Adam> : AdamArithmetic<Adam, false> {};

/// Of what is not a matrix; matrices are in optim/muon.cpp.
template <>
struct Arithmetic<Muon> : AdamArithmetic<Muon, true> {
  static Scalars scalars(const Muon& rule, Rates rates) {
    rates.lr *= rule.adamw_lr_scale;
    return AdamArithmetic<Muon, true>::scalars(rule, rates);
  }
};

/// torch::optim::SGD:  g += weight_decay p;  buffer = momentum buffer + one_minus_dampening g
///   p -= lr (no buffer: g;  nesterov: g + nesterov_momentum buffer;  else: buffer)
template <>
struct Arithmetic<SGD> {
  struct Scalars {
    float gradient_scale = 1;
    float weight_decay = 0;
    float momentum = 0, one_minus_dampening = 1, nesterov_momentum = 0;
    float lr = 0;
    bool nesterov = false;
  };
  static constexpr int kSums = 0, kLeastStates = 0, kMostStates = 1;

  static Scalars scalars(const SGD& rule, const Rates& rates) {
    // torch's first step sets the buffer to the gradient, undamped.
    const bool first = rates.step == 1;
    return {.gradient_scale = rounded(rates.gradient_scale),
            .weight_decay = rounded(rates.weight_decay),
            .momentum = first ? 0 : rounded(rule.momentum),
            .one_minus_dampening = first ? 1 : rounded(1 - rule.dampening),
            .nesterov_momentum = rounded(rule.momentum),
            .lr = rounded(rates.lr),
            .nesterov = rule.nesterov};
  }

  template <class V, int kStates>
  ZERO_ANY_DEVICE [[gnu::always_inline]] static inline void update(const Scalars& s,
                                                                   Elements<V, kStates>& x) {
    auto g = V::mul(x.gradient, V::set(s.gradient_scale));
    g = V::add(g, V::mul(V::set(s.weight_decay), x.master));
    if constexpr (kStates > 0) {
      auto& buffer = x.states[0];
      buffer = V::add(V::mul(buffer, V::set(s.momentum)), V::mul(V::set(s.one_minus_dampening), g));
      g = s.nesterov ? V::add(g, V::mul(V::set(s.nesterov_momentum), buffer)) : buffer;
    }
    x.master = V::sub(x.master, V::mul(V::set(s.lr), g));
  }
};

/// Lion:  p = decay p - lr sign(beta1 m + one_minus_beta1 g);  m = beta2 m + one_minus_beta2 g
/// The signs of 0 and NaN are 0, as torch::sign's of 0.
template <>
struct Arithmetic<Lion> {
  struct Scalars {
    float gradient_scale = 1;
    float decay = 1;  // 1 - lr * weight_decay
    float beta1 = 0, one_minus_beta1 = 0;
    float beta2 = 0, one_minus_beta2 = 0;
    float lr = 0;
  };
  static constexpr int kSums = 0, kLeastStates = 1, kMostStates = 1;

  static Scalars scalars(const Lion& rule, const Rates& rates) {
    const Betas betas = betas_of(rule, rates);
    return {.gradient_scale = rounded(rates.gradient_scale),
            .decay = rounded(1 - rates.lr * rates.weight_decay),
            .beta1 = rounded(betas.beta1),
            .one_minus_beta1 = rounded(1 - betas.beta1),
            .beta2 = rounded(betas.beta2),
            .one_minus_beta2 = rounded(1 - betas.beta2),
            .lr = rounded(rates.lr)};
  }

  template <class V, int kStates>
  ZERO_ANY_DEVICE [[gnu::always_inline]] static inline void update(const Scalars& s,
                                                                   Elements<V, kStates>& x) {
    const auto g = V::mul(x.gradient, V::set(s.gradient_scale));
    auto& m = x.states[0];
    const auto direction = V::sign(V::add(V::mul(m, V::set(s.beta1)), V::mul(V::set(s.one_minus_beta1), g)));
    x.master = V::sub(V::mul(x.master, V::set(s.decay)), V::mul(V::set(s.lr), direction));
    m = V::add(V::mul(m, V::set(s.beta2)), V::mul(V::set(s.one_minus_beta2), g));
  }
};

/// LAMB, as optimizer_rules.h says; u = m correction1 / (sqrt(v) inverse_root_correction2 + eps) + decay p.
template <>
struct Arithmetic<LAMB> {
  struct Scalars {
    float gradient_scale = 1;
    float beta1 = 0, one_minus_beta1 = 0;
    float beta2 = 0, one_minus_beta2 = 0;
    float correction1 = 1;               // 1 / (1 - beta1^step)
    float inverse_root_correction2 = 1;  // 1 / sqrt(1 - beta2^step)
    float eps = 0, decay = 0;
    float lr = 0;  // times the ratio, with sums
    double rate = 0, min_coeff = 0, max_coeff = 0;
    bool has_ratio = true;
  };
  static constexpr int kSums = 2, kLeastStates = 2, kMostStates = 2;  // |p|^2, |u|^2

  static Scalars scalars(const LAMB& rule, const Rates& rates) {
    const Betas betas = betas_of(rule, rates);
    const auto [correction1, correction2] = bias_corrections(rule, betas, rates.step);
    return {.gradient_scale = rounded(rates.gradient_scale),
            .beta1 = rounded(betas.beta1),
            .one_minus_beta1 = rounded(1 - betas.beta1),
            .beta2 = rounded(betas.beta2),
            .one_minus_beta2 = rounded(1 - betas.beta2),
            .correction1 = rounded(1 / correction1),
            .inverse_root_correction2 = rounded(1 / std::sqrt(correction2)),
            .eps = rounded(rule.eps),
            .decay = rounded(rates.weight_decay),
            .lr = rounded(rates.lr),
            .rate = rates.lr,
            .min_coeff = rule.min_coeff,
            .max_coeff = rule.max_coeff,
            .has_ratio = rule.undecayed_ratio || rates.weight_decay != 0};
  }

  ZERO_ANY_DEVICE static Scalars with_sums(Scalars s, const double* sums) {
    const double norm = std::sqrt(sums[0]), update_norm = std::sqrt(sums[1]);
    if (!s.has_ratio || norm == 0 || update_norm == 0) return s;
    const double ratio = norm / update_norm;
    s.lr = rounded(s.rate * (ratio > s.max_coeff ? s.max_coeff : ratio < s.min_coeff ? s.min_coeff : ratio));
    return s;
  }

  template <class V, int kStates>
  ZERO_ANY_DEVICE [[gnu::always_inline]] static inline typename V::Reg step_of(
      const Scalars& s, const Elements<V, kStates>& x) {
    const auto& [m, v] = x.states;
    const auto root = V::mul(V::sqrt(v), V::set(s.inverse_root_correction2));
    const auto step = V::div(V::mul(V::set(s.correction1), m), V::add(root, V::set(s.eps)));
    return V::add(step, V::mul(V::set(s.decay), x.master));
  }

  template <class V, int kStates, class Sums>
  ZERO_ANY_DEVICE [[gnu::always_inline]] static inline void direction(const Scalars& s,
                                                                      Elements<V, kStates>& x, Sums& sums) {
    const auto g = V::mul(x.gradient, V::set(s.gradient_scale));
    auto& [m, v] = x.states;
    m = V::add(V::mul(m, V::set(s.beta1)), V::mul(V::set(s.one_minus_beta1), g));
    v = V::add(V::mul(v, V::set(s.beta2)), V::mul(V::mul(V::set(s.one_minus_beta2), g), g));
    sums.add_square(0, x.master);
    sums.add_square(1, step_of(s, x));
  }

  template <class V, int kStates>
  ZERO_ANY_DEVICE [[gnu::always_inline]] static inline void update(const Scalars& s,
                                                                   Elements<V, kStates>& x) {
    x.master = V::sub(x.master, V::mul(V::set(s.lr), step_of(s, x)));
  }
};

/// LARS, as optimizer_rules.h says.
template <>
struct Arithmetic<LARS> {
  struct Scalars {
    float gradient_scale = 1;
    float decay = 0, momentum = 0, nesterov_momentum = 0;
    float ratio = 1;  // with sums
    float lr = 0;
    double trust = 0, weight_decay = 0, eps = 0;
    bool has_ratio = true;
  };
  static constexpr int kSums = 2, kLeastStates = 0, kMostStates = 1;  // |p|^2, |g|^2
  static constexpr bool kMeasures = true;

  static Scalars scalars(const LARS& rule, const Rates& rates) {
    const double weight_decay = rates.dims > 1 ? rates.weight_decay : 0;
    return {.gradient_scale = rounded(rates.gradient_scale),
            .decay = rounded(weight_decay),
            .momentum = rounded(rule.momentum),
            .nesterov_momentum = rounded(rule.nesterov ? rule.momentum : 0),
            .lr = rounded(rates.lr),
            .trust = rule.trust_coefficient,
            .weight_decay = weight_decay,
            .eps = rule.eps,
            .has_ratio = rates.dims > 1};
  }

  ZERO_ANY_DEVICE static Scalars with_sums(Scalars s, const double* sums) {
    const double norm = std::sqrt(sums[0]);
    const double divisor = std::sqrt(sums[1]) + s.weight_decay * norm + s.eps;
    if (s.has_ratio && norm > 0 && divisor > 0) s.ratio = rounded(s.trust * norm / divisor);
    return s;
  }

  template <class V, int kStates, class Sums>
  ZERO_ANY_DEVICE [[gnu::always_inline]] static inline void direction(const Scalars& s,
                                                                      Elements<V, kStates>& x, Sums& sums) {
    sums.add_square(0, x.master);
    sums.add_square(1, V::mul(x.gradient, V::set(s.gradient_scale)));
  }

  template <class V, int kStates>
  ZERO_ANY_DEVICE [[gnu::always_inline]] static inline void update(const Scalars& s,
                                                                   Elements<V, kStates>& x) {
    auto g = V::mul(x.gradient, V::set(s.gradient_scale));
    g = V::mul(V::add(g, V::mul(V::set(s.decay), x.master)), V::set(s.ratio));
    if constexpr (kStates > 0) {
      auto& buffer = x.states[0];
      buffer = V::add(V::mul(buffer, V::set(s.momentum)), g);
      g = s.nesterov_momentum != 0 ? V::add(g, V::mul(V::set(s.nesterov_momentum), buffer)) : buffer;
    }
    x.master = V::sub(x.master, V::mul(V::set(s.lr), g));
  }
};

/// torch::optim::Adagrad:  g += weight_decay p;  sum += g g;  p -= rate g / (sqrt(sum) + eps)
template <>
struct Arithmetic<Adagrad> {
  struct Scalars {
    float gradient_scale = 1;
    float decay = 0;
    float initial = 0;  // what the sum begins with, in the first step
    float eps = 0;
    float rate = 0;  // lr / (1 + lr_decay * steps before)
  };
  static constexpr int kSums = 0, kLeastStates = 1, kMostStates = 1;

  static Scalars scalars(const Adagrad& rule, const Rates& rates) {
    return {.gradient_scale = rounded(rates.gradient_scale),
            .decay = rounded(rates.weight_decay),
            .initial = rates.step == 1 ? rounded(rule.initial_accumulator_value) : 0,
            .eps = rounded(rule.eps),
            .rate = rounded(rates.lr / (1 + rule.lr_decay * static_cast<double>(rates.step - 1)))};
  }

  template <class V, int kStates>
  ZERO_ANY_DEVICE [[gnu::always_inline]] static inline void update(const Scalars& s,
                                                                   Elements<V, kStates>& x) {
    auto g = V::mul(x.gradient, V::set(s.gradient_scale));
    g = V::add(g, V::mul(V::set(s.decay), x.master));
    auto& sum = x.states[0];
    sum = V::add(V::add(sum, V::set(s.initial)), V::mul(g, g));
    x.master = V::sub(x.master, V::div(V::mul(V::set(s.rate), g), V::add(V::sqrt(sum), V::set(s.eps))));
  }
};

/// Adafactor's last pass, where x.gradient is u before its rate (optim/adafactor.h).
template <>
struct Arithmetic<Adafactor> {
  struct Scalars {
    float gradient_scale = 1;  // rate / max(1, RMS(u) / clip_threshold)
    float decay = 1;           // 1 - weight_decay * rate
    float beta1 = 0, one_minus_beta1 = 1;
  };
  static constexpr int kSums = 0, kLeastStates = 0, kMostStates = 1;

  static Scalars scalars(const Adafactor& rule, const Rates& rates) {
    return {.gradient_scale = rounded(rates.lr * rates.gradient_scale),
            .decay = rounded(1 - rates.lr * rates.weight_decay),
            .beta1 = rounded(rule.beta1),
            .one_minus_beta1 = rounded(1 - rule.beta1)};
  }

  template <class V, int kStates>
  ZERO_ANY_DEVICE [[gnu::always_inline]] static inline void update(const Scalars& s,
                                                                   Elements<V, kStates>& x) {
    auto u = V::mul(x.gradient, V::set(s.gradient_scale));
    if constexpr (kStates > 0) {
      auto& m = x.states[0];
      m = V::add(V::mul(m, V::set(s.beta1)), V::mul(V::set(s.one_minus_beta1), u));
      u = m;
    }
    x.master = V::sub(V::mul(x.master, V::set(s.decay)), u);
  }
};

}  // namespace zero::kernels
