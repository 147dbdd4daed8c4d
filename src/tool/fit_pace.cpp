#include "fit_pace.h"

#include <algorithm>

namespace zero::tool {

int64_t steps_in_time(int64_t planned, int64_t done, double step_s, double left_s) {
  constexpr double kMostOver = 1.1;
  constexpr int64_t kTail = 16;
  if (static_cast<double>(planned - done) * step_s <= left_s * kMostOver) return planned;
  const auto held = static_cast<int64_t>(std::max(0.0, left_s / step_s));
  return std::min(planned, done + std::max(held, 1 + done / kTail));
}

}  // namespace zero::tool
