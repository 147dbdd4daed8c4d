#include "sharding/step_outcome.h"

#include <cmath>

#include "optim/shard_optimizer.h"
#include "zero/step_result.h"

namespace zero {
namespace detail {

ClipResult StepOutcome::clip() { return clip_result(*sums().const_data_ptr<double>(), max_norm_); }

bool StepOutcome::skipped() { return !std::isfinite(*sums().const_data_ptr<double>()); }

}  // namespace detail

bool StepResult::skipped() const { return outcome_ != nullptr && outcome_->skipped(); }

std::string StepResult::overflow() const { return outcome_ != nullptr ? outcome_->overflow : ""; }

ClipResult StepResult::clip() const { return outcome_ != nullptr ? outcome_->clip() : ClipResult{}; }

}  // namespace zero
