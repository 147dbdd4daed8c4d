#pragma once
// What a person sees of a run: a bar that is drawn anew on a terminal, lines in a log.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

#include "zero/train.h"

namespace zero::training {

/// "1h02m", "3m05s", "12s".
std::string duration_text(double seconds);

class Progress {
 public:
  /// `out` null: shows nothing. A line each `interval` steps, and for the first and the last.
  Progress(std::FILE* out, int64_t first_step, int64_t last_step, int64_t interval);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepReport& report);
  /// A line of its own, above the bar.
  void note(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  std::string line(const StepReport& report) const;
  void draw(const std::string& text, int64_t step);

  std::FILE* out_;
  bool terminal_ = false;
  bool drawn_ = false;  // a bar stands on the last line
  int64_t first_step_, last_step_, interval_;
  Clock::time_point begin_;
  Clock::time_point shown_at_;  // when the last line was shown, and its step
  int64_t shown_step_;
  double tokens_per_s_ = 0;  // since then
};

}  // namespace zero::training
