#include "recompute/chain_plan.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace zero::detail {
namespace {

constexpr int64_t kSlots = 500, kNever = std::numeric_limits<int64_t>::max();

/// Units `first` to `last` in `memory` slots: the last one's output and the first one's input are others'.
class Table {
 public:
  Table(std::vector<ChainUnit> units, int64_t memory)
      : units_(std::move(units)), count_(static_cast<int>(units_.size())), memory_(memory) {
    best_.resize(static_cast<size_t>(count_) * count_ * (memory_ + 1));
    for (int length = 1; length <= count_; ++length)
      for (int first = 0; first + length <= count_; ++first) fill(first, first + length - 1);
  }

  int64_t time() { return best(0, count_ - 1, memory_).time; }
  std::vector<ChainPart> parts() { return parts(0, count_ - 1, memory_); }

 private:
  struct Best {
    int64_t time = kNever;
    int run_to = -1;  // of a run that begins at `first`; -1: `first` keeps what it needs
  };

  Best& best(int first, int last, int64_t memory) {
    return best_[(static_cast<size_t>(first) * count_ + last) * (memory_ + 1) + memory];
  }
  int64_t time_of(int first, int last, int64_t memory) {
    return memory < 0 ? kNever : best(first, last, memory).time;
  }
  int64_t input(int unit) const { return units_[unit].input_bytes; }

  void fill(int first, int last) {
    // Of a run that ends at each unit: how long its forward takes, and what it holds on its way.
    std::vector<int64_t> run_time, run_memory;
    int64_t time = 0, memory = 0;
    for (int unit = first; unit < last; ++unit) {
      time += units_[unit].forward_time;
      memory = std::max(memory, (unit > first ? input(unit) : 0) + input(unit + 1));
      run_time.push_back(time);
      run_memory.push_back(memory);
    }
    for (int64_t m = 0; m <= memory_; ++m) {
      Best found{.time = time_keeping(first, last, m), .run_to = -1};
      for (int end = first; end < last; ++end) {
        if (run_memory[end - first] > m) break;
        const int64_t rest = time_of(end + 1, last, m - input(end + 1)), again = time_of(first, end, m);
        if (rest == kNever || again == kNever) continue;
        const int64_t all = run_time[end - first] + rest + again;
        if (all < found.time) found = {.time = all, .run_to = end};
      }
      best(first, last, m) = found;
    }
  }

  int64_t memory_after_keeping(int first, int last, int64_t memory) const {
    return memory - units_[first].kept_bytes - (first < last ? input(first + 1) : 0);
  }

  int64_t time_keeping(int first, int last, int64_t memory) {
    const int64_t left = memory_after_keeping(first, last, memory);
    if (left < 0) return kNever;
    const int64_t rest = first < last ? time_of(first + 1, last, left) : 0;
    return rest == kNever ? kNever : units_[first].forward_time + units_[first].backward_time + rest;
  }

  std::vector<ChainPart> parts(int first, int last, int64_t memory) {
    std::vector<ChainPart> result;
    while (first <= last) {
      const int run_to = best(first, last, memory).run_to;
      if (run_to < 0) {
        result.push_back({.first = first, .last = first, .keeps = true, .inside = {}});
        memory = memory_after_keeping(first, last, memory);
        ++first;
      } else {
        result.push_back(
            {.first = first, .last = run_to, .keeps = false, .inside = parts(first, run_to, memory)});
        memory -= input(run_to + 1);
        first = run_to + 1;
      }
    }
    return result;
  }

  std::vector<ChainUnit> units_;
  int count_;
  int64_t memory_;
  std::vector<Best> best_;
};

std::vector<ChainUnit> in_slots(std::vector<ChainUnit> units, int64_t slot_bytes) {
  const auto rounded_up = [&](int64_t& bytes) { bytes = (bytes + slot_bytes - 1) / slot_bytes; };
  for (ChainUnit& unit : units) {
    rounded_up(unit.input_bytes);
    rounded_up(unit.kept_bytes);
  }
  return units;
}

}  // namespace

std::optional<ChainPlan> plan_chain(const std::vector<ChainUnit>& units, int64_t budget_bytes) {
  if (units.empty()) return ChainPlan{};
  if (budget_bytes < 0) return std::nullopt;
  const int64_t budget = std::min(budget_bytes, most_bytes(units));
  const int64_t slot_bytes = std::max<int64_t>(1, (budget + kSlots - 1) / kSlots);
  // Nothing is lost to rounding where everything fits.
  const bool all_fit = budget == most_bytes(units);
  const std::vector<ChainUnit> sizes = in_slots(units, slot_bytes);
  Table table(sizes, all_fit ? most_bytes(sizes) : budget / slot_bytes);
  if (table.time() == kNever) return std::nullopt;
  return ChainPlan{.parts = table.parts(), .time = table.time()};
}

int64_t most_bytes(const std::vector<ChainUnit>& units) {
  int64_t bytes = 0;
  for (size_t i = 0; i < units.size(); ++i) bytes += units[i].kept_bytes + (i > 0 ? units[i].input_bytes : 0);
  return bytes;
}

int64_t least_budget_bytes(const std::vector<ChainUnit>& units) {
  int64_t none = -1, some = most_bytes(units);
  const int64_t close = std::max<int64_t>(1, some / kSlots / 8);
  while (some - none > close) {
    const int64_t middle = none + (some - none) / 2;
    (plan_chain(units, middle) ? some : none) = middle;
  }
  return some;
}

}  // namespace zero::detail
