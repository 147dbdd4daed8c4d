#pragma once
// RUN/metrics.jsonl: one JSON object a line. docs/training.md has the fields.

#include <cstdint>
#include <filesystem>
#include <string>

#include "zero/evaluate.h"
#include "zero/train.h"

namespace zero::training {

/// One line each, without the line's end. Numbers that JSON does not have (NaN, infinity) are null.
std::string metrics_line(const StepReport& report);
std::string metrics_line(int64_t step, const EvalResult& result);

/// Removes the lines of steps after `step` and an unfinished last line, so that a resumed run goes on as if
/// it had never been interrupted. Replaces the file only if something changes. Throws Corrupt for a line that
/// is not a JSON object with a step, Io.
void cut_metrics(const std::filesystem::path& path, int64_t step);

}  // namespace zero::training
