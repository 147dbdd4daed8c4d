// The dynamic program against every plan there is, each carried out step by step.
#include "recompute/chain_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <utility>
#include <vector>

namespace zero::detail {
namespace {

/// A plan of a part of the chain: its first part, and how the rest goes on.
struct Tree {
  int first, last;  // of the first part
  std::shared_ptr<const Tree> inside, rest;
  int tier = -1;
};
using TreePtr = std::shared_ptr<const Tree>;

/// Every plan of units first..last, and nothing else: a large Schroeder number of them.
std::vector<TreePtr> all_plans(int first, int last, std::vector<std::vector<std::vector<TreePtr>>>& known) {
  if (first > last) return {nullptr};
  std::vector<TreePtr>& plans = known[first][last];
  if (!plans.empty()) return plans;
  for (const TreePtr& rest : all_plans(first + 1, last, known))
    plans.push_back(std::make_shared<Tree>(Tree{first, first, nullptr, rest}));
  for (int end = first; end < last; ++end)
    for (const TreePtr& inside : all_plans(first, end, known))
      for (const TreePtr& rest : all_plans(end + 1, last, known))
        plans.push_back(std::make_shared<Tree>(Tree{first, end, inside, rest}));
  return plans;
}

std::vector<TreePtr> all_plans(int units) {
  std::vector<std::vector<std::vector<TreePtr>>> known(units, std::vector<std::vector<TreePtr>>(units));
  return all_plans(0, units - 1, known);
}

TreePtr tree_of(const std::vector<ChainPart>& parts, size_t from = 0) {
  if (from == parts.size()) return nullptr;
  const ChainPart& part = parts[from];
  EXPECT_TRUE(!part.keeps || part.first == part.last);
  return std::make_shared<Tree>(Tree{part.first, part.last, part.keeps ? nullptr : tree_of(part.inside),
                                     tree_of(parts, from + 1), part.tier});
}

/// Carries a plan out, and counts.
class Machine {
 public:
  Machine(const std::vector<ChainUnit>& units, const std::vector<ChainTier>& tiers)
      : units_(units), tiers_(tiers) {}

  void run(const Tree* plan) {
    forward(plan);
    backward(plan);
    EXPECT_EQ(held_, 0);
  }
  int64_t peak() const { return peak_; }
  int64_t time() const { return time_; }

 private:
  void hold(int64_t bytes) { peak_ = std::max(peak_, held_ += bytes); }
  void drop(int64_t bytes) { held_ -= bytes; }

  void forward(const Tree* part) {
    for (; part != nullptr; part = part->rest.get()) {
      const bool is_end = part->rest == nullptr;
      for (int unit = part->first; unit <= part->last; ++unit) {
        time_ += std::max(units_[unit].forward_time, way_out(*part));
        if (part->inside == nullptr && part->tier < 0) hold(units_[unit].kept_bytes);
        if (unit < part->last || !is_end) hold(units_[unit + 1].input_bytes);
        if (unit > part->first) drop(units_[unit].input_bytes);
      }
    }
  }

  void backward(const Tree* part) {
    if (part == nullptr) return;
    backward(part->rest.get());
    if (part->rest != nullptr) drop(units_[part->rest->first].input_bytes);
    if (part->inside == nullptr) {
      if (part->tier >= 0) hold(units_[part->first].kept_bytes);
      time_ += std::max(units_[part->first].backward_time, way_back(*part));
      drop(units_[part->first].kept_bytes);
    } else {
      forward(part->inside.get());
      backward(part->inside.get());
    }
  }

  static int64_t whole(double time) { return static_cast<int64_t>(std::ceil(time)); }
  double bytes_of(const Tree& part) const { return static_cast<double>(units_[part.first].kept_bytes); }
  int64_t way_out(const Tree& part) const {
    return part.tier < 0 ? 0 : whole(bytes_of(part) * tiers_[part.tier].out_time);
  }
  int64_t way_back(const Tree& part) const {
    return part.tier < 0 ? 0 : whole(bytes_of(part) * tiers_[part.tier].back_time);
  }

  const std::vector<ChainUnit>& units_;
  const std::vector<ChainTier>& tiers_;
  int64_t held_ = 0, peak_ = 0, time_ = 0;
};

struct Outcome {
  int64_t peak, time;
};
Outcome outcome_of(const std::vector<ChainUnit>& units, const TreePtr& plan,
                   const std::vector<ChainTier>& tiers = {}) {
  Machine machine(units, tiers);
  machine.run(plan.get());
  return {machine.peak(), machine.time()};
}

std::vector<ChainUnit> random_chain(int units, std::mt19937& random) {
  const auto to = [&](int most) { return static_cast<int64_t>(random() % (most + 1)); };
  std::vector<ChainUnit> chain;
  for (int i = 0; i < units; ++i)
    chain.push_back(
        {.forward_time = to(9), .backward_time = to(9), .input_bytes = to(5), .kept_bytes = to(12)});
  return chain;
}

/// At every budget, as good as the best of all plans; and what it says is what it takes.
void expect_best(const std::vector<ChainUnit>& units, const std::vector<TreePtr>& plans,
                 const std::vector<ChainTier>& tiers = {}) {
  constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  std::vector<int64_t> best(most_bytes(units) + 3, kNone);  // by budget
  for (const TreePtr& plan : plans) {
    const Outcome found = outcome_of(units, plan, tiers);
    ASSERT_LT(found.peak, std::ssize(best));
    best[found.peak] = std::min(best[found.peak], found.time);
  }
  for (size_t budget = 1; budget < best.size(); ++budget)
    best[budget] = std::min(best[budget], best[budget - 1]);
  int64_t least = -1;
  for (int64_t budget = 0; budget < std::ssize(best); ++budget) {
    const auto plan = plan_chain(units, budget, tiers);
    ASSERT_EQ(plan.has_value(), best[budget] != kNone) << budget;
    if (!plan) continue;
    if (least < 0) least = budget;
    EXPECT_EQ(plan->time, best[budget]) << budget;
    const Outcome carried_out = outcome_of(units, tree_of(plan->parts), tiers);
    EXPECT_EQ(carried_out.time, plan->time);
    EXPECT_LE(carried_out.peak, budget);
  }
  EXPECT_EQ(least_budget_bytes(units), least);
}

TEST(ChainPlan, EqualsTheBestOfAllPlans) {
  std::mt19937 random(1);
  const std::vector<size_t> schroeder{1, 2, 6, 22, 90, 394, 1806, 8558, 41586, 206098};
  for (int units = 1; units <= 10; ++units) {
    const std::vector<TreePtr> plans = all_plans(units);
    ASSERT_EQ(plans.size(), schroeder[units - 1]);
    const int chains = units <= 6 ? 60 : units <= 8 ? 20 : 4;
    for (int chain = 0; chain < chains; ++chain) expect_best(random_chain(units, random), plans);
  }
}

/// The plans of all_plans(), and those with units that keep in a tier instead, but for what is computed
/// again.
std::vector<TreePtr> plans_with_tiers(int first, int last, int tiers,
                                      std::vector<std::vector<std::vector<TreePtr>>>& known) {
  if (first > last) return {nullptr};
  std::vector<TreePtr> plans;
  for (const TreePtr& rest : plans_with_tiers(first + 1, last, tiers, known))
    for (int tier = -1; tier < tiers; ++tier)
      plans.push_back(std::make_shared<Tree>(Tree{first, first, nullptr, rest, tier}));
  for (int end = first; end < last; ++end)
    for (const TreePtr& rest : plans_with_tiers(end + 1, last, tiers, known))
      for (const TreePtr& inside : all_plans(first, end, known))
        plans.push_back(std::make_shared<Tree>(Tree{first, end, inside, rest}));
  return plans;
}

TEST(ChainPlan, EqualsTheBestOfAllPlansWithTiers) {
  std::mt19937 random(3);
  const auto rate = [&] { return static_cast<double>(random() % 200) / 100; };
  bool some_offloaded = false;
  for (const auto& [most_units, tiers] : {std::pair{10, 1}, std::pair{6, 2}}) {
    for (int units = 1; units <= most_units; ++units) {
      std::vector<std::vector<std::vector<TreePtr>>> known(units, std::vector<std::vector<TreePtr>>(units));
      const std::vector<TreePtr> plans = plans_with_tiers(0, units - 1, tiers, known);
      for (int chain = 0; chain < (units <= 6 ? 30 : units <= 8 ? 5 : 1); ++chain) {
        std::vector<ChainTier> rates;
        for (int i = 0; i < tiers; ++i) rates.push_back({.out_time = rate(), .back_time = rate()});
        const std::vector<ChainUnit> sizes = random_chain(units, random);
        expect_best(sizes, plans, rates);
        for (const ChainPart& part : plan_chain(sizes, least_budget_bytes(sizes), rates)->parts)
          some_offloaded |= part.tier >= 0;
      }
    }
  }
  EXPECT_TRUE(some_offloaded);
}

TEST(ChainPlan, AFastTierReplacesRecomputation) {
  const std::vector<ChainUnit> units(
      12, {.forward_time = 10, .backward_time = 20, .input_bytes = 1, .kept_bytes = 10});
  const int64_t budget = most_bytes(units) / 2;
  const ChainTier fast{.out_time = 1, .back_time = 2}, slow{.out_time = 2.5, .back_time = 2};
  EXPECT_EQ(plan_chain(units, budget, {fast})->time, 12 * 30);
  // 15 more than its forward: computing it again takes 10.
  EXPECT_EQ(plan_chain(units, budget, {slow})->time, plan_chain(units, budget)->time);
  EXPECT_EQ(plan_chain(units, budget, {slow, fast})->time, 12 * 30);
}

TEST(ChainPlan, KeepsEverythingWhereItFits) {
  const std::vector<ChainUnit> units(
      48, {.forward_time = 10, .backward_time = 20, .input_bytes = 3 << 20, .kept_bytes = 50 << 20});
  const auto plan = plan_chain(units, most_bytes(units));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->time, 48 * 30);
  for (const ChainPart& part : plan->parts) EXPECT_TRUE(part.keeps);
}

TEST(ChainPlan, LargeSizesStayInsideTheBudget) {
  std::mt19937 random(2);
  for (int chain = 0; chain < 5; ++chain) {
    std::vector<ChainUnit> units = random_chain(24, random);
    for (ChainUnit& unit : units) {
      unit.input_bytes = unit.input_bytes * 7654321 + 1;
      unit.kept_bytes = unit.kept_bytes * 8765432 + 1;
    }
    int64_t slower = 0;
    for (const int percent : {100, 70, 50, 40}) {
      const int64_t budget = most_bytes(units) * percent / 100;
      const auto plan = plan_chain(units, budget);
      ASSERT_TRUE(plan) << percent;
      EXPECT_GE(plan->time, slower);
      slower = plan->time;
      EXPECT_LE(outcome_of(units, tree_of(plan->parts)).peak, budget);
    }
    const int64_t least = least_budget_bytes(units);
    EXPECT_TRUE(plan_chain(units, least));
    EXPECT_FALSE(plan_chain(units, least * 98 / 100));
  }
}

}  // namespace
}  // namespace zero::detail
