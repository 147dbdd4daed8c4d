#pragma once
// What a person sees of a run: a bar that is drawn anew on a terminal, lines in a log.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "zero/train.h"

namespace zero::training {

/// "1h02m", "3m05s", "12s".
std::string duration_text(double seconds);

/// A terminal's line: as many of the fields as fit into so many columns, the first ones first and none cut
/// (but the first, where even that does not fit). Behind the third a bar has precedence, long where there is
/// room for all.
std::string bar_line(const std::vector<std::string>& fields, double done, int columns);

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

  struct Fields {
    std::string step, loss, eta, skipped, speed, lr, grad_norm, memory;
  };
  Fields fields_of(const StepReport& report) const;
  double eta_s(const StepReport& report) const;
  std::string log_line(const StepReport& report) const;
  void draw(const StepReport& report);

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
