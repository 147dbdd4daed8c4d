#include "recompute/chain_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace zero::detail {
namespace {

constexpr int64_t kSlots = 500, kNever = std::numeric_limits<int64_t>::max();

/// The tier in which a unit's time is least.
struct Offload {
  int64_t time = kNever;
  int tier = -1;
};

Offload best_offload(const ChainUnit& unit, const std::vector<ChainTier>& tiers) {
  Offload best;
  for (int tier = 0; tier < std::ssize(tiers); ++tier)
    if (const int64_t time = time_in_tier(unit, tiers[tier]); time < best.time)
      best = {.time = time, .tier = tier};
  return best;
}

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

  /// Units `first` to the last one, of which some may keep in a tier: those are never computed again.
  void add_offloads(const std::vector<Offload>& offloads) {
    offloads_ = offloads;
    outer_.resize(static_cast<size_t>(count_ + 1) * (memory_ + 1));
    for (int64_t m = 0; m <= memory_; ++m) outer(count_, m).time = 0;
    for (int first = count_ - 1; first >= 0; --first)
      for (int64_t m = 0; m <= memory_; ++m) outer(first, m) = best_outer(first, m);
  }
  int64_t time_with_offloads() { return outer(0, memory_).time; }
  std::vector<ChainPart> parts_with_offloads();

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

  /// How the first of the units from `first` on runs.
  struct Outer {
    int64_t time = kNever;
    int run_to = -1;        // as in Best
    bool offloads = false;  // else
  };
  Outer& outer(int first, int64_t memory) {
    return outer_[static_cast<size_t>(first) * (memory_ + 1) + memory];
  }
  int64_t output(int unit) const { return unit + 1 < count_ ? input(unit + 1) : 0; }
  int64_t outer_time(int first, int64_t memory) { return memory < 0 ? kNever : outer(first, memory).time; }
  Outer best_outer(int first, int64_t memory);

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
        result.push_back({.first = first, .last = first, .keeps = true, .tier = -1, .inside = {}});
        memory = memory_after_keeping(first, last, memory);
        ++first;
      } else {
        result.push_back({.first = first,
                          .last = run_to,
                          .keeps = false,
                          .tier = -1,
                          .inside = parts(first, run_to, memory)});
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
  std::vector<Offload> offloads_;
  std::vector<Outer> outer_;
};

Table::Outer Table::best_outer(int first, int64_t memory) {
  const ChainUnit& unit = units_[first];
  Outer found;
  const auto consider = [&](int64_t own, int64_t rest, int run_to, bool offloads) {
    if (own == kNever || rest == kNever || own + rest >= found.time) return;
    found = {.time = own + rest, .run_to = run_to, .offloads = offloads};
  };
  consider(unit.forward_time + unit.backward_time,
           outer_time(first + 1, memory - unit.kept_bytes - output(first)), -1, false);
  // Of what is in a tier nothing is here while the rest runs.
  if (unit.kept_bytes <= memory)
    consider(offloads_[first].time, outer_time(first + 1, memory - output(first)), -1, true);
  int64_t run_time = 0, run_memory = 0;
  for (int end = first; end < count_ - 1; ++end) {
    run_time += units_[end].forward_time;
    run_memory = std::max(run_memory, (end > first ? input(end) : 0) + output(end));
    if (run_memory > memory) break;
    const int64_t again = time_of(first, end, memory);
    consider(again == kNever ? kNever : run_time + again, outer_time(end + 1, memory - output(end)), end,
             false);
  }
  return found;
}

std::vector<ChainPart> Table::parts_with_offloads() {
  std::vector<ChainPart> result;
  int64_t memory = memory_;
  for (int first = 0; first < count_;) {
    const Outer how = outer(first, memory);
    const bool keeps = how.run_to < 0;
    const int last = keeps ? first : how.run_to;
    result.push_back({.first = first,
                      .last = last,
                      .keeps = keeps,
                      .tier = how.offloads ? offloads_[first].tier : -1,
                      .inside = keeps ? std::vector<ChainPart>{} : parts(first, last, memory)});
    memory -= output(last) + (keeps && !how.offloads ? units_[first].kept_bytes : 0);
    first = last + 1;
  }
  return result;
}

std::vector<ChainUnit> in_slots(std::vector<ChainUnit> units, int64_t slot_bytes) {
  const auto rounded_up = [&](int64_t& bytes) { bytes = (bytes + slot_bytes - 1) / slot_bytes; };
  for (ChainUnit& unit : units) {
    rounded_up(unit.input_bytes);
    rounded_up(unit.kept_bytes);
  }
  return units;
}

}  // namespace

int64_t time_in_tier(const ChainUnit& unit, const ChainTier& tier) {
  const auto whole = [&](double time_a_byte) {
    return static_cast<int64_t>(std::ceil(static_cast<double>(unit.kept_bytes) * time_a_byte));
  };
  return std::max(unit.forward_time, whole(tier.out_time)) +
         std::max(unit.backward_time, whole(tier.back_time));
}

std::optional<ChainPlan> plan_chain(const std::vector<ChainUnit>& units, int64_t budget_bytes,
                                    const std::vector<ChainTier>& tiers) {
  if (units.empty()) return ChainPlan{};
  if (budget_bytes < 0) return std::nullopt;
  const int64_t budget = std::min(budget_bytes, most_bytes(units));
  const int64_t slot_bytes = std::max<int64_t>(1, (budget + kSlots - 1) / kSlots);
  // Nothing is lost to rounding where everything fits.
  const bool all_fit = budget == most_bytes(units);
  const std::vector<ChainUnit> sizes = in_slots(units, slot_bytes);
  Table table(sizes, all_fit ? most_bytes(sizes) : budget / slot_bytes);
  if (table.time() == kNever) return std::nullopt;
  if (tiers.empty()) return ChainPlan{.parts = table.parts(), .time = table.time()};
  std::vector<Offload> offloads;
  for (const ChainUnit& unit : units) offloads.push_back(best_offload(unit, tiers));
  table.add_offloads(offloads);
  return ChainPlan{.parts = table.parts_with_offloads(), .time = table.time_with_offloads()};
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
