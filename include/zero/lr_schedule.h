#pragma once
// Learning-rate schedules: pure functions of the step, so a resumed run needs no schedule state.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

namespace zero {

/// The two decay rates of a rule with moments.
struct Betas {
  double beta1 = 0.9, beta2 = 0.999;
};

/// base_lr in every step after the warm-up.
struct ConstantLr {
  int64_t warmup_steps = 0;
};
/// Warm-up, then a straight line from base_lr at step `warmup_steps` to min_ratio * base_lr at step
/// `total_steps`. The warm-up of all these gives step k the rate base_lr * (k + 1) /
/// (warmup_steps + 1).
struct LinearLr {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double min_ratio = 0;
};
/// Warm-up, then half a cosine from base_lr to min_ratio * base_lr (Loshchilov and Hutter, arXiv 1608.03983).
struct CosineLr {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double min_ratio = 0;
};

/// Warm-up, then min_ratio + (1 - min_ratio) * (1 - progress)^power of base_lr; power 1 is LinearLr.
struct PolynomialLr {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double min_ratio = 0;
  double power = 1;
};
/// Warm-up, then base_lr * sqrt(timescale / (timescale + steps since the warm-up)) without an end (Vaswani et
/// al., arXiv 1706.03762, section 5.3; transformers' get_inverse_sqrt_schedule).
struct InverseSqrtLr {
  int64_t warmup_steps = 0;
  int64_t timescale = 0;  // 0: warmup_steps, or 10,000 without a warm-up
};
/// Warm-up, then half a cosine `cycles` times, each from base_lr to min_ratio * base_lr and `cycle_growth`
/// times as long as the one before, the last ending at total_steps (arXiv 1608.03983, T_mult).
struct CosineRestartsLr {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double min_ratio = 0;
  int64_t cycles = 1;
  double cycle_growth = 1;
};
/// How WarmupStableDecayLr falls, over p from 0 to 1: 1 - p, 1 - sqrt(p), half a cosine.
enum class DecayShape : uint8_t { Linear, Sqrt, Cosine };
/// Warm-up, then base_lr, and in the last decay_steps before total_steps down to min_ratio * base_lr (Hu et
/// al., arXiv 2404.06395; the shapes: Haegele et al., arXiv 2405.18392).
struct WarmupStableDecayLr {
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  int64_t decay_steps = 0;
  double min_ratio = 0;
  DecayShape decay_shape = DecayShape::Sqrt;
};

/// How DeepSpeed's warm-ups rise, over n steps already taken: ln(n + 1) / ln(N) or n / N.
enum class WarmupCurve : uint8_t { Log, Linear };

// DeepSpeed's schedulers, with its parameter names and defaults. DeepSpeed moves its scheduler after each
// optimizer step, so its step k trains with the value the formulas give for n = k - 1, and its step 0 with
// the start value. These do the same: lr_at(k) is the rate that DeepSpeed's optimizer uses in its step k.

/// From warmup_min_lr to warmup_max_lr, then constant.
struct WarmupLr {
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr = {};  // base_lr when not given
  int64_t warmup_num_steps = 1000;           // 1 acts as 2
  WarmupCurve warmup_type = WarmupCurve::Log;
};
/// WarmupLr, then a straight line to 0 at total_num_steps.
struct WarmupDecayLr {
  int64_t total_num_steps = 0;
  double warmup_min_lr = 0;
  double warmup_max_lr = 0.001;
  int64_t warmup_num_steps = 1000;
  WarmupCurve warmup_type = WarmupCurve::Log;
};
/// Ratios of base_lr: from warmup_min_ratio to 1, then half a cosine to cos_min_ratio.
struct WarmupCosineLr {
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  int64_t warmup_num_steps = 1000;
  double cos_min_ratio = 1e-4;
  WarmupCurve warmup_type = WarmupCurve::Log;
};
/// One cycle cycle_min_lr -> cycle_max_lr -> cycle_min_lr, then decay (Smith, arXiv 1803.09820). beta1 moves
/// against it.
struct OneCycleLr {
  double cycle_min_lr = 0;  // required
  double cycle_max_lr = 0;  // required
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size = {};  // as the first
  int64_t cycle_first_stair_count = 0;                 // 0: continuous
  std::optional<int64_t> cycle_second_stair_count = {};
  int64_t decay_step_size = 0;  // 0: no decay
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
};
/// lr_range_test_min_lr * (1 + step_rate * k / step_size): finds the largest rate that still trains.
struct LrRangeTest {
  double lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;
};

using LrScheduleSpec =
    std::variant<ConstantLr, LinearLr, CosineLr, WarmupLr, WarmupDecayLr, WarmupCosineLr, OneCycleLr,
                 LrRangeTest, PolynomialLr, InverseSqrtLr, CosineRestartsLr, WarmupStableDecayLr>;

/// A checked schedule. A value without state; any thread may use it.
class LrSchedule {
 public:
  /// Constant.
  LrSchedule() = default;
  /// Throws Config naming the field and its value.
  LrSchedule(LrScheduleSpec spec);  // NOLINT(google-explicit-constructor): a spec is a schedule

  /// The rate of optimizer step `step` (0 is the first). Throws Usage for a negative step.
  double lr_at(int64_t step, double base_lr) const;
  /// What that step uses instead of the optimizer's betas: only OneCycleLr with cycle_momentum says so.
  std::optional<Betas> betas_at(int64_t step) const;

  const LrScheduleSpec& spec() const { return spec_; }

 private:
  LrScheduleSpec spec_;
};

}  // namespace zero
