#include "lr_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "zero/from_config.h"
#include "zero/optimizer_rules.h"

namespace zero::tool {
namespace {

constexpr int kRows = 16;
constexpr int64_t kColumns = 96;

std::vector<double> column_means(const LrSchedule& schedule, double base_lr, int64_t steps) {
  const int64_t columns = std::min(steps, kColumns);
  std::vector<double> means;
  for (int64_t column = 0; column < columns; ++column) {
    const int64_t begin = column * steps / columns, end = (column + 1) * steps / columns;
    // Of long columns a thousand steps say enough.
    const int64_t stride = std::max<int64_t>(1, (end - begin) / 1000);
    double sum = 0, count = 0;
    for (int64_t step = begin; step < end; step += stride, ++count) sum += schedule.lr_at(step, base_lr);
    means.push_back(sum / count);
  }
  return means;
}

/// Flush right in `width` columns.
std::string figure(double value, int width) {
  char text[32];
  std::snprintf(text, sizeof text, "%*.3g", width, value);
  return text;
}

std::string drawing(const std::vector<double>& means) {
  const double top = std::max(*std::max_element(means.begin(), means.end()), 1e-300);
  std::vector<int> heights;
  for (double mean : means) heights.push_back(static_cast<int>(std::lround(mean / top * (kRows - 1))));
  std::string text;
  for (int row = kRows - 1; row >= 0; --row) {
    std::string line = row % 5 == 0 ? figure(top * row / (kRows - 1), 9) : std::string(9, ' ');
    line += " |";
    for (int height : heights) line += height == row ? '*' : height > row ? '.' : ' ';
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace

std::string lr_plot(Config config, int ranks) {
  config = resolve(std::move(config), ranks);
  const LrSchedule schedule = schedule_of(config);
  const double base_lr = rule_lr(config.optimizer.rule);
  const int64_t steps = std::max<int64_t>(1, config.run.steps);
  const std::vector<double> means = column_means(schedule, base_lr, steps);
  std::string text = drawing(means);
  const std::string last = std::to_string(steps - 1);
  const size_t gap = means.size() > last.size() + 1 ? means.size() - last.size() - 1 : 1;
  text += std::string(9, ' ') + " +" + std::string(means.size(), '-') + "\n";
  text += std::string(11, ' ') + "0" + std::string(gap, ' ') + last + "  step\n\n";
  text += "lr of step 0: " + figure(schedule.lr_at(0, base_lr), 0) + ", of step " + last + ": " +
          figure(schedule.lr_at(steps - 1, base_lr), 0) + "\n";
  return text;
}

}  // namespace zero::tool
