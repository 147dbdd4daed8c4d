#include "optim/lr_deepspeed.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "rules/check.h"

namespace zero::deepspeed {
namespace {

// DeepSpeed fixes the second decay rate while it cycles the first.
constexpr double kCycleBeta2 = 0.99;

/// Share of the warm-up after `n` scheduler steps; n < length.
double warmup_gamma(WarmupCurve curve, int64_t n, int64_t length) {
  if (curve == WarmupCurve::Log)
    return std::log(static_cast<double>(n + 1)) * (1 / std::log(static_cast<double>(length)));
  return static_cast<double>(n) / static_cast<double>(length);
}

int64_t warmup_length(int64_t warmup_num_steps) { return std::max<int64_t>(2, warmup_num_steps); }

struct Cycle {
  double first, second, total;
  int64_t first_stairs, second_stairs;
};

Cycle shape(const OneCycleLr& spec) {
  const auto first = static_cast<double>(spec.cycle_first_step_size);
  const auto second = static_cast<double>(spec.cycle_second_step_size.value_or(spec.cycle_first_step_size));
  return {first, second, first + second, spec.cycle_first_stair_count,
          spec.cycle_second_stair_count.value_or(spec.cycle_first_stair_count)};
}

/// 0 at both ends of the cycle, 1 in the middle; in stairs where asked. Stairs are counted in whole steps, so
/// that rounding at the top cannot drop one.
double cycle_height(const Cycle& cycle, int64_t step) {
  const double at = std::fmod(static_cast<double>(step), cycle.total);
  const bool rising = at <= cycle.first;
  const int64_t stairs = rising ? cycle.first_stairs : cycle.second_stairs;
  const double done = rising ? at : cycle.total - at;
  const double length = rising ? cycle.first : cycle.second;
  if (stairs == 0) return done / length;
  return std::floor(done * static_cast<double>(stairs) / length) / static_cast<double>(stairs);
}

/// Decay steps after the cycle; nothing while it lasts. DeepSpeed's last cycle step is one past its end.
std::optional<double> decay_interval(const OneCycleLr& spec, const Cycle& cycle, int64_t step) {
  const double after = static_cast<double>(step) - cycle.total;
  if (after < 1) return std::nullopt;
  return spec.decay_step_size == 0 ? 0 : after / static_cast<double>(spec.decay_step_size);
}

}  // namespace

double lr(const WarmupLr& spec, int64_t step, double base_lr) {
  const double max_lr = spec.warmup_max_lr.value_or(base_lr);
  const int64_t n = step - 1, length = warmup_length(spec.warmup_num_steps);
  if (n < 0) return spec.warmup_min_lr;
  const double gamma = n < length ? warmup_gamma(spec.warmup_type, n, length) : 1.0;
  return spec.warmup_min_lr + (max_lr - spec.warmup_min_lr) * gamma;
}

double lr(const WarmupDecayLr& spec, int64_t step, double) {
  const int64_t n = step - 1, length = warmup_length(spec.warmup_num_steps);
  if (n < 0) return spec.warmup_min_lr;
  const double left = static_cast<double>(spec.total_num_steps - n);
  const double decay_steps = static_cast<double>(std::max<int64_t>(1, spec.total_num_steps - length));
  const double gamma =
      n < length ? warmup_gamma(spec.warmup_type, n, length) : std::max(0.0, left / decay_steps);
  return spec.warmup_min_lr + (spec.warmup_max_lr - spec.warmup_min_lr) * gamma;
}

double lr(const WarmupCosineLr& spec, int64_t step, double base_lr) {
  const int64_t n = step - 1, length = warmup_length(spec.warmup_num_steps);
  if (n < 0) return 0;
  if (n < length) {
    const double gamma = warmup_gamma(spec.warmup_type, n, length);
    return base_lr * (spec.warmup_min_ratio + gamma * (1 - spec.warmup_min_ratio));
  }
  const double decay_steps = static_cast<double>(std::max<int64_t>(1, spec.total_num_steps - length));
  const double progress = std::min(1.0, static_cast<double>(n - length + 1) / decay_steps);
  const double half_cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return base_lr * std::max(0.0, spec.cos_min_ratio + (1 - spec.cos_min_ratio) * half_cosine);
}

double lr(const OneCycleLr& spec, int64_t step, double) {
  const Cycle cycle = shape(spec);
  if (const auto interval = decay_interval(spec, cycle, step)) {
    return spec.cycle_min_lr / (1 + spec.decay_lr_rate * *interval);
  }
  return spec.cycle_min_lr + (spec.cycle_max_lr - spec.cycle_min_lr) * cycle_height(cycle, step);
}

Betas betas(const OneCycleLr& spec, int64_t step) {
  const Cycle cycle = shape(spec);
  if (step == 0) return {spec.cycle_min_mom, kCycleBeta2};  // DeepSpeed starts the cycle from the wrong end
  if (const auto interval = decay_interval(spec, cycle, step)) {
    return {spec.cycle_max_mom * (1 + spec.decay_mom_rate * *interval), kCycleBeta2};
  }
  return {spec.cycle_max_mom - (spec.cycle_max_mom - spec.cycle_min_mom) * cycle_height(cycle, step),
          kCycleBeta2};
}

double lr(const LrRangeTest& spec, int64_t step, double) {
  double interval = static_cast<double>(step) / static_cast<double>(spec.lr_range_test_step_size);
  if (spec.lr_range_test_staircase) interval = std::floor(interval);
  return spec.lr_range_test_min_lr * (1 + spec.lr_range_test_step_rate * interval);
}

void validate(const WarmupLr& spec) {
  check(is_finite_non_negative(spec.warmup_min_lr), "WarmupLR", "warmup_min_lr", spec.warmup_min_lr,
        kFiniteNonNegative);
  const double max_lr = spec.warmup_max_lr.value_or(0);
  check(is_finite_non_negative(max_lr), "WarmupLR", "warmup_max_lr", max_lr, kFiniteNonNegative);
  check(spec.warmup_num_steps > 0, "WarmupLR", "warmup_num_steps", spec.warmup_num_steps, "> 0");
}

void validate(const WarmupDecayLr& spec) {
  check(spec.total_num_steps > 0, "WarmupDecayLR", "total_num_steps", spec.total_num_steps, "> 0");
  check(is_finite_non_negative(spec.warmup_min_lr), "WarmupDecayLR", "warmup_min_lr", spec.warmup_min_lr,
        kFiniteNonNegative);
  check(is_finite_non_negative(spec.warmup_max_lr), "WarmupDecayLR", "warmup_max_lr", spec.warmup_max_lr,
        kFiniteNonNegative);
  check(spec.warmup_num_steps > 0, "WarmupDecayLR", "warmup_num_steps", spec.warmup_num_steps, "> 0");
}

void validate(const WarmupCosineLr& spec) {
  const auto is_ratio = [](double ratio) { return ratio >= 0 && ratio <= 1; };
  check(spec.total_num_steps > 0, "WarmupCosineLR", "total_num_steps", spec.total_num_steps, "> 0");
  check(is_ratio(spec.warmup_min_ratio), "WarmupCosineLR", "warmup_min_ratio", spec.warmup_min_ratio,
        "0 to 1");
  check(spec.warmup_num_steps > 0, "WarmupCosineLR", "warmup_num_steps", spec.warmup_num_steps, "> 0");
  check(is_ratio(spec.cos_min_ratio), "WarmupCosineLR", "cos_min_ratio", spec.cos_min_ratio, "0 to 1");
}

void validate(const OneCycleLr& spec) {
  const char* const name = "OneCycle";
  check(is_finite_non_negative(spec.cycle_min_lr), name, "cycle_min_lr", spec.cycle_min_lr,
        kFiniteNonNegative);
  check(is_finite_non_negative(spec.cycle_max_lr) && spec.cycle_max_lr > 0 &&
            spec.cycle_max_lr >= spec.cycle_min_lr,
        name, "cycle_max_lr", spec.cycle_max_lr, "a finite number > 0 and >= cycle_min_lr");
  check(is_finite_non_negative(spec.decay_lr_rate), name, "decay_lr_rate", spec.decay_lr_rate,
        kFiniteNonNegative);
  check(spec.cycle_first_step_size > 0, name, "cycle_first_step_size", spec.cycle_first_step_size, "> 0");
  const Cycle cycle = shape(spec);
  check(cycle.second > 0, name, "cycle_second_step_size", static_cast<int64_t>(cycle.second), "> 0");
  check(cycle.first_stairs >= 0, name, "cycle_first_stair_count", cycle.first_stairs, ">= 0");
  check(cycle.second_stairs >= 0, name, "cycle_second_stair_count", cycle.second_stairs, ">= 0");
  check(spec.decay_step_size >= 0, name, "decay_step_size", spec.decay_step_size, ">= 0");
  if (!spec.cycle_momentum) return;
  check(is_beta(spec.cycle_min_mom), name, "cycle_min_mom", spec.cycle_min_mom, kBetaRange);
  check(is_beta(spec.cycle_max_mom) && spec.cycle_max_mom >= spec.cycle_min_mom, name, "cycle_max_mom",
        spec.cycle_max_mom, "at least cycle_min_mom and below 1");
  check(is_finite_non_negative(spec.decay_mom_rate), name, "decay_mom_rate", spec.decay_mom_rate,
        kFiniteNonNegative);
}

void validate(const LrRangeTest& spec) {
  const char* const name = "LRRangeTest";
  check(is_finite_non_negative(spec.lr_range_test_min_lr) && spec.lr_range_test_min_lr > 0, name,
        "lr_range_test_min_lr", spec.lr_range_test_min_lr, "a finite number > 0");
  check(spec.lr_range_test_step_size > 0, name, "lr_range_test_step_size", spec.lr_range_test_step_size,
        "> 0");
  check(is_finite_non_negative(spec.lr_range_test_step_rate), name, "lr_range_test_step_rate",
        spec.lr_range_test_step_rate, kFiniteNonNegative);
}

}  // namespace zero::deepspeed
