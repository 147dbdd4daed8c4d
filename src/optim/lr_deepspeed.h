#pragma once
// DeepSpeed's schedules: formulas and checks. Steps as in LrSchedule::lr_at.

#include "zero/lr_schedule.h"

namespace zero::deepspeed {

double lr(const WarmupLr& spec, int64_t step, double base_lr);
double lr(const WarmupDecayLr& spec, int64_t step, double base_lr);
double lr(const WarmupCosineLr& spec, int64_t step, double base_lr);
double lr(const OneCycleLr& spec, int64_t step, double base_lr);
double lr(const LrRangeTest& spec, int64_t step, double base_lr);
Betas betas(const OneCycleLr& spec, int64_t step);

void validate(const WarmupLr& spec);
void validate(const WarmupDecayLr& spec);
void validate(const WarmupCosineLr& spec);
void validate(const OneCycleLr& spec);
void validate(const LrRangeTest& spec);

}  // namespace zero::deepspeed
