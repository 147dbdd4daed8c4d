#pragma once
// What the ranks of `zero fit` do, a part of its work at a time. Each function runs in a rank that launch()
// started, is collective, and returns the rank's exit code.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "zero/config.h"

namespace zero::tool {

/// A part of the training. It ends after step `until`, or after the first step past `deadline`.
struct FitPart {
  int64_t until = 0;
  std::optional<std::chrono::steady_clock::time_point> deadline = {};
  bool introduces = true;  // shows what is trained first
  bool quiet = false;      // shows and saves nothing, to measure a step's time
};

/// Trains from the newest checkpoint of the run, or from the beginning, to the part's end, and saves. A
/// signal to stop ends it earlier, with 128 + its number.
int fit_train_rank(const Config& config, const FitPart& part);

/// Prints how the run's model goes on with the beginning of the held-out text. With `score` it evaluates the
/// model first and prints, and writes to RUN/fit.json, its bits per byte beside those of gzip -9 and xz -9e.
int fit_look_rank(const Config& config, const std::string& held_out_text, bool score);

}  // namespace zero::tool
