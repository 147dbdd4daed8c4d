#pragma once
// Scales of losses: what keeps small gradients representable in fp16. Pure arithmetic; no tensors.

#include <cstdint>
#include <optional>
#include <string_view>

namespace zero {

/// What a loss is multiplied by before backward; gradients are divided by it before anything else looks at
/// them. A scale that is a power of two changes no bit of a run in fp32 or bf16, unless something overflows.
struct LossScaling {
  /// How a dynamic scale moves; it doubles and halves.
  ///   DeepSpeed   DynamicLossScaler (0.19): halves once `hysteresis` overflows have come since they were
  ///               last refilled, doubles with clean step window + 1 after the start or an overflow and then
  ///               with each window-th
  ///   GradScaler  torch.amp's: halves with every overflow, doubles with each window-th clean step in a row;
  ///               `hysteresis` and its refill mean nothing, and there is no least scale (min_scale 0)
  enum class Rule : uint8_t { DeepSpeed, GradScaler };
  /// What an overflow is that would halve the least scale. Of a fixed scale every overflow is Skip.
  enum class AtMinimum : uint8_t {
    Stop,      // an error, once the step has been skipped
    Skip,      // the step is skipped and the scale stays
    Continue,  // the scale goes on falling
  };
  Rule rule = Rule::DeepSpeed;
  double fixed_scale = 0;                // above 0: that one, for good
  int initial_scale_power = 16;          // the first scale is 2 to it
  std::optional<int64_t> window = {};    // steps; unset: 1000, GradScaler's 2000
  int hysteresis = 2;                    // overflows it takes to halve
  bool consecutive_hysteresis = false;   // a clean step refills them; off: only where the scale doubles
  std::optional<double> min_scale = {};  // unset: 1, GradScaler's 0
  AtMinimum at_minimum = AtMinimum::Stop;
  bool operator==(const LossScaling&) const = default;
};

/// Throws Config for values out of range, naming each.
void validate(const LossScaling& scaling);

/// All that a scaler knows: what a checkpoint keeps.
struct LossScaleState {
  double scale = 1;
  int64_t steps = 0;        // skipped ones too
  int64_t clean_steps = 0;  // since the last overflow, or (GradScaler) since the scale doubled
  int hysteresis = 0;       // overflows left
  bool operator==(const LossScaleState&) const = default;
};

/// Not thread safe.
class LossScaler {
 public:
  explicit LossScaler(const LossScaling& scaling);

  /// Of the next step.
  double scale() const { return state_.scale; }
  const LossScaleState& state() const { return state_; }
  /// Goes on as the scaler did whose state it was.
  void set_state(const LossScaleState& state) { state_ = state; }
  /// After each step: whether its gradients overflowed, on any rank. Throws Usage, after it has counted the
  /// step, where the scale is at its least and AtMinimum::Stop says so.
  void update(bool overflow);

 private:
  bool halve();
  void update_as_deepspeed(bool overflow);
  void update_as_grad_scaler(bool overflow);

  LossScaling scaling_;
  int64_t window_;
  double min_scale_;
  LossScaleState state_;
  bool at_least_ = false;  // update() found the least scale too large
};

}  // namespace zero
