// Schedules of the library's own, and the door to DeepSpeed's.
#include "zero/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/lr_deepspeed.h"
#include "rules/check.h"
#include "zero/error.h"

namespace zero {
namespace {

double warmup(int64_t step, int64_t warmup_steps) {
  return static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
}

/// 0 where the decay starts, 1 where it ends and after.
template <class Spec>
double progress(const Spec& spec, int64_t step) {
  if (step >= spec.total_steps) return 1;
  return static_cast<double>(step - spec.warmup_steps) /
         static_cast<double>(spec.total_steps - spec.warmup_steps);
}

double half_cosine(double progress) { return (1 + std::cos(std::numbers::pi * progress)) / 2; }

double lr(const ConstantLr& spec, int64_t step, double base_lr) {
  return step < spec.warmup_steps ? base_lr * warmup(step, spec.warmup_steps) : base_lr;
}

double lr(const LinearLr& spec, int64_t step, double base_lr) {
  if (step < spec.warmup_steps) return base_lr * warmup(step, spec.warmup_steps);
  return base_lr * (1 - (1 - spec.min_ratio) * progress(spec, step));
}

double lr(const CosineLr& spec, int64_t step, double base_lr) {
  if (step < spec.warmup_steps) return base_lr * warmup(step, spec.warmup_steps);
  return base_lr * (spec.min_ratio + (1 - spec.min_ratio) * half_cosine(progress(spec, step)));
}

double lr(const PolynomialLr& spec, int64_t step, double base_lr) {
  if (step < spec.warmup_steps) return base_lr * warmup(step, spec.warmup_steps);
  return base_lr * (spec.min_ratio + (1 - spec.min_ratio) * std::pow(1 - progress(spec, step), spec.power));
}

double lr(const InverseSqrtLr& spec, int64_t step, double base_lr) {
  if (step < spec.warmup_steps) return base_lr * warmup(step, spec.warmup_steps);
  constexpr int64_t kTimescale = 10'000;
  const int64_t given = spec.timescale > 0 ? spec.timescale : spec.warmup_steps;
  const auto timescale = static_cast<double>(given > 0 ? given : kTimescale);
  return base_lr * std::sqrt(timescale / (timescale + static_cast<double>(step - spec.warmup_steps)));
}

/// Progress within the cycle that this share of all cycles lies in.
double progress_of_cycle(const CosineRestartsLr& spec, double share) {
  double all = 0, length = 1;
  for (int64_t i = 0; i < spec.cycles; ++i, length *= spec.cycle_growth) all += length;
  double begin = 0;
  length = 1;
  for (int64_t i = 0; i + 1 < spec.cycles && share >= (begin + length) / all; ++i) {
    begin += length;
    length *= spec.cycle_growth;
  }
  return (share * all - begin) / length;
}

double lr(const CosineRestartsLr& spec, int64_t step, double base_lr) {
  if (step < spec.warmup_steps) return base_lr * warmup(step, spec.warmup_steps);
  if (step >= spec.total_steps) return base_lr * spec.min_ratio;
  const double part = progress_of_cycle(spec, progress(spec, step));
  return base_lr * (spec.min_ratio + (1 - spec.min_ratio) * half_cosine(part));
}

double share_left(DecayShape shape, double progress) {
  if (shape == DecayShape::Linear) return 1 - progress;
  return shape == DecayShape::Sqrt ? 1 - std::sqrt(progress) : half_cosine(progress);
}

double lr(const WarmupStableDecayLr& spec, int64_t step, double base_lr) {
  if (step < spec.warmup_steps) return base_lr * warmup(step, spec.warmup_steps);
  const int64_t decayed = std::min(step, spec.total_steps) - (spec.total_steps - spec.decay_steps);
  if (decayed <= 0) return base_lr;
  const double progress = static_cast<double>(decayed) / static_cast<double>(spec.decay_steps);
  return base_lr * (spec.min_ratio + (1 - spec.min_ratio) * share_left(spec.decay_shape, progress));
}

constexpr std::string_view kPlace = "learning-rate schedule";

void validate_schedule(const ConstantLr& spec) {
  check(spec.warmup_steps >= 0, kPlace, "warmup_steps", spec.warmup_steps, ">= 0");
}

template <class Spec>
void validate_decay(const Spec& spec) {
  check(spec.warmup_steps >= 0, kPlace, "warmup_steps", spec.warmup_steps, ">= 0");
  check(spec.total_steps > spec.warmup_steps, kPlace, "total_steps", spec.total_steps,
        "more than warmup_steps");
  check(spec.min_ratio >= 0 && spec.min_ratio <= 1, kPlace, "min_ratio", spec.min_ratio, "0 to 1");
}
void validate_schedule(const LinearLr& spec) { validate_decay(spec); }
void validate_schedule(const CosineLr& spec) { validate_decay(spec); }
void validate_schedule(const PolynomialLr& spec) {
  validate_decay(spec);
  check(spec.power > 0 && spec.power <= 100, kPlace, "power", spec.power, "above 0, at most 100");
}
void validate_schedule(const InverseSqrtLr& spec) {
  check(spec.warmup_steps >= 0, kPlace, "warmup_steps", spec.warmup_steps, ">= 0");
  check(spec.timescale >= 0, kPlace, "timescale", spec.timescale, ">= 0");
}
void validate_schedule(const CosineRestartsLr& spec) {
  validate_decay(spec);
  check(spec.cycles >= 1 && spec.cycles <= 1000, kPlace, "cycles", spec.cycles, "1 to 1000");
  check(spec.cycle_growth >= 1 && spec.cycle_growth <= 1000, kPlace, "cycle_growth", spec.cycle_growth,
        "1 to 1000");
  // A sum of lengths beyond a double's range would have no shares.
  const bool finite = std::isfinite(std::pow(spec.cycle_growth, static_cast<double>(spec.cycles)));
  check(finite, kPlace, "cycle_growth", spec.cycle_growth, "less for so many cycles");
}
void validate_schedule(const WarmupStableDecayLr& spec) {
  validate_decay(spec);
  check(spec.decay_steps >= 0 && spec.decay_steps <= spec.total_steps - spec.warmup_steps, kPlace,
        "decay_steps", spec.decay_steps, "0 to total_steps - warmup_steps");
}

template <class Spec>
double lr(const Spec& spec, int64_t step, double base_lr) {
  return deepspeed::lr(spec, step, base_lr);
}
template <class Spec>
void validate_schedule(const Spec& spec) {
  deepspeed::validate(spec);
}

}  // namespace

LrSchedule::LrSchedule(LrScheduleSpec spec) : spec_(spec) {
  std::visit([](const auto& one) { validate_schedule(one); }, spec_);
}

double LrSchedule::lr_at(int64_t step, double base_lr) const {
  require(step >= 0, ErrorKind::Usage, "LrSchedule::lr_at",
          "step is " + std::to_string(step) + ", expected >= 0");
  return std::visit([&](const auto& spec) { return lr(spec, step, base_lr); }, spec_);
}

std::optional<Betas> LrSchedule::betas_at(int64_t step) const {
  require(step >= 0, ErrorKind::Usage, "LrSchedule::betas_at",
          "step is " + std::to_string(step) + ", expected >= 0");
  const auto* cycle = std::get_if<OneCycleLr>(&spec_);
  if (!cycle || !cycle->cycle_momentum) return std::nullopt;
  return deepspeed::betas(*cycle, step);
}

}  // namespace zero
