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

double lr(const ConstantLr& spec, int64_t step, double base_lr) {
  return step < spec.warmup_steps ? base_lr * warmup(step, spec.warmup_steps) : base_lr;
}

double lr(const LinearLr& spec, int64_t step, double base_lr) {
  if (step < spec.warmup_steps) return base_lr * warmup(step, spec.warmup_steps);
  return base_lr * (1 - (1 - spec.min_ratio) * progress(spec, step));
}

double lr(const CosineLr& spec, int64_t step, double base_lr) {
  if (step < spec.warmup_steps) return base_lr * warmup(step, spec.warmup_steps);
  const double half_cosine = (1 + std::cos(std::numbers::pi * progress(spec, step))) / 2;
  return base_lr * (spec.min_ratio + (1 - spec.min_ratio) * half_cosine);
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
