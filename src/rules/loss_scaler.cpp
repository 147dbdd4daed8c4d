#include <cmath>
#include <limits>
#include <string>

#include "rules/check.h"
#include "zero/error.h"
#include "zero/loss_scale.h"

namespace zero {

void validate(const LossScaling& scaling) {
  constexpr auto kPlace = "loss scaling";
  check(is_finite_non_negative(scaling.fixed_scale), kPlace, "fixed_scale", scaling.fixed_scale,
        kFiniteNonNegative);
  check(scaling.initial_scale_power >= 0 && scaling.initial_scale_power <= 120, kPlace, "initial_scale_power",
        int64_t{scaling.initial_scale_power}, "0 to 120");
  const int64_t window = scaling.window.value_or(1);
  check(window >= 1, kPlace, "window", window, "1 or more");
  check(scaling.hysteresis >= 1, kPlace, "hysteresis", int64_t{scaling.hysteresis}, "1 or more");
  const double least = scaling.min_scale.value_or(0);
  check(is_finite_non_negative(least), kPlace, "min_scale", least, kFiniteNonNegative);
}

LossScaler::LossScaler(const LossScaling& scaling)
    : scaling_(scaling),
      window_(scaling.window.value_or(scaling.rule == LossScaling::Rule::GradScaler ? 2000 : 1000)),
      min_scale_(scaling.min_scale.value_or(scaling.rule == LossScaling::Rule::GradScaler ? 0 : 1)) {
  validate(scaling);
  state_.scale = scaling.fixed_scale > 0 ? scaling.fixed_scale : std::ldexp(1.0, scaling.initial_scale_power);
  state_.hysteresis = scaling.hysteresis;
}

// False at the least scale, where that does not fall.
bool LossScaler::halve() {
  const double half = state_.scale / 2;
  const bool falls = scaling_.at_minimum == LossScaling::AtMinimum::Continue;
  if (!falls && state_.scale <= min_scale_) return false;
  state_.scale = falls ? half : std::fmax(half, min_scale_);
  return true;
}

void LossScaler::update_as_deepspeed(bool overflow) {
  if (overflow) {
    if (state_.hysteresis > 1)
      state_.hysteresis--;
    else
      at_least_ = !halve();
    return;
  }
  if (scaling_.consecutive_hysteresis) state_.hysteresis = scaling_.hysteresis;
  const int64_t before = state_.clean_steps - 1;  // this one does not count
  if (before <= 0 || before % window_ != 0) return;
  state_.hysteresis = scaling_.hysteresis;
  state_.scale *= 2;
}

void LossScaler::update_as_grad_scaler(bool overflow) {
  if (overflow) {
    at_least_ = !halve();
  } else if (state_.clean_steps == window_) {
    state_.clean_steps = 0;
    if (state_.scale * 2 <= std::numeric_limits<float>::max()) state_.scale *= 2;
  }
}

void LossScaler::update(bool overflow) {
  at_least_ = false;
  state_.clean_steps = overflow ? 0 : state_.clean_steps + 1;
  state_.steps++;
  if (scaling_.fixed_scale > 0) return;
  if (scaling_.rule == LossScaling::Rule::DeepSpeed)
    update_as_deepspeed(overflow);
  else
    update_as_grad_scaler(overflow);
  if (at_least_ && scaling_.at_minimum == LossScaling::AtMinimum::Stop)
    fail(ErrorKind::Usage, "loss scaling",
         "gradients are not finite although the loss scale is " + to_text(state_.scale) +
             ", the least that is allowed",
         "lower the learning rate or train in bf16; min_scale and at_minimum say what happens here");
}

}  // namespace zero
