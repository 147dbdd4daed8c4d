// Eviction and prefetch as pure decisions: hand-checked cases, optimality against brute force, and invariants
// on random play.
#include "plan/residency_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "zero/error.h"

namespace {
using zero::ResidencyPolicy;
using Pass = ResidencyPolicy::Pass;

// Carries out the actions and checks that they are possible.
class Player {
 public:
  explicit Player(const zero::ResidencyOptions& options) : options_(options), policy_(options) {}

  void apply(const ResidencyPolicy::Actions& actions) {
    for (int unit : actions.evict) {
      EXPECT_TRUE(resident_.erase(unit)) << "evicts " << unit << ", which is not there";
    }
    for (int unit : actions.fetch) {
      EXPECT_TRUE(resident_.insert(unit).second) << "fetches " << unit << " twice";
      fetches_++;
    }
    int64_t bytes = 0;
    for (int unit : resident_) bytes += options_.unit_bytes[static_cast<size_t>(unit)];
    EXPECT_EQ(bytes, policy_.resident_bytes());
    peak_ = std::max(peak_, bytes);
  }
  void touch(std::vector<int> units) {
    apply(policy_.touch(units));
    for (int unit : units) EXPECT_TRUE(resident_.contains(unit)) << unit;
  }
  /// A pass over `order`, after a training pass a step; returns how many fetches it took.
  int64_t pass(const std::vector<int>& order, Pass kind = Pass::Train) {
    const int64_t before = fetches_;
    apply(policy_.begin_pass(kind));
    for (int unit : order) touch({unit});
    apply(policy_.end_pass());
    if (kind == Pass::Train) forget();
    return fetches_ - before;
  }
  /// What a step does.
  void forget() {
    policy_.forget_values();
    resident_.clear();
  }
  ResidencyPolicy& policy() { return policy_; }
  int64_t peak() const { return peak_; }
  const std::set<int>& resident() const { return resident_; }

 private:
  zero::ResidencyOptions options_;
  ResidencyPolicy policy_;
  std::set<int> resident_;
  int64_t fetches_ = 0, peak_ = 0;
};

std::vector<int> forward_backward(int units) {
  std::vector<int> order;
  for (int i = 0; i < units; ++i) order.push_back(i);
  for (int i = units; i-- > 0;) order.push_back(i);
  return order;
}

TEST(ResidencyPolicy, WithoutBudgetEachUnitIsFetchedForwardAndBackward) {
  Player player({.unit_bytes = {8, 8, 8, 8}, .budget_bytes = 0, .prefetch_bytes = 0});
  for (int step = 0; step < 3; ++step) {
    player.apply(player.policy().begin_pass(Pass::Train));
    int64_t fetches = 0;
    for (int unit : {0, 1, 2, 3}) {
      auto actions = player.policy().touch(std::vector<int>{unit});
      fetches += static_cast<int64_t>(actions.fetch.size());
      player.apply(actions);
    }
    player.apply(player.policy().trim());
    EXPECT_TRUE(player.resident().empty()) << "nothing outlives the forward";
    for (int unit : {3, 2, 1, 0}) {
      auto actions = player.policy().touch(std::vector<int>{unit});
      fetches += static_cast<int64_t>(actions.fetch.size());
      player.apply(actions);
    }
    player.apply(player.policy().end_pass());
    player.policy().forget_values();
    EXPECT_EQ(fetches, 8) << "2 gathers a unit: with the reduce-scatter 3 Psi";
    EXPECT_EQ(player.peak(), 8);
  }
}

TEST(ResidencyPolicy, WithEverythingResidentEachUnitIsFetchedOnce) {
  Player player({.unit_bytes = {8, 8, 8, 8}});
  for (int step = 0; step < 3; ++step) EXPECT_EQ(player.pass(forward_backward(4)), 4);
}

TEST(ResidencyPolicy, KeepsWhatIsUsedSoonest) {
  // Budget of two of four units: at the turn units 3 and 2 stay, 0 and 1 come again.
  Player player({.unit_bytes = {8, 8, 8, 8}, .budget_bytes = 16, .prefetch_bytes = 0});
  player.pass(forward_backward(4));
  EXPECT_EQ(player.pass(forward_backward(4)), 6);
  EXPECT_LE(player.peak(), 16);
}

TEST(ResidencyPolicy, PrefetchesInScheduleOrderWithinItsBytes) {
  Player player({.unit_bytes = {8, 8, 8, 8}, .budget_bytes = 24, .prefetch_bytes = 8});
  player.pass(forward_backward(4));
  auto begin = player.policy().begin_pass(Pass::Train);
  EXPECT_EQ(begin.fetch, std::vector<int>{0});
  player.apply(begin);
  auto first = player.policy().touch(std::vector<int>{0});
  EXPECT_EQ(first.fetch, std::vector<int>{1}) << "one unit ahead";
  player.apply(first);
}

TEST(ResidencyPolicy, ValuesOfAnEvaluationServeTheNext) {
  Player player({.unit_bytes = {8, 8, 8}, .budget_bytes = 16, .prefetch_bytes = 0});
  player.pass({0, 1, 2, 2, 1, 0}, Pass::Evaluate);
  EXPECT_EQ(player.resident(), (std::set<int>{0, 1})) << "the next pass begins with them";
  EXPECT_EQ(player.pass({0, 1, 2, 2, 1, 0}, Pass::Evaluate), 2);
}

// Forwards and backwards of micro-batches over units 0..n-1, trimmed after each: "FFBFBB".
void play(Player& player, int units, std::string_view phases) {
  player.apply(player.policy().begin_pass(Pass::Train));
  for (const char phase : phases) {
    for (int i = 0; i < units; ++i) player.touch({phase == 'F' ? i : units - 1 - i});
    player.apply(player.policy().trim());
  }
  player.apply(player.policy().end_pass());
}

TEST(ResidencyPolicy, AnyOrderOfMicroBatchesIsOneSchedule) {
  for (const std::string_view phases : {"FBFBFB", "FFBFBB", "FFFBBB"}) {
    Player player({.unit_bytes = {8, 8, 8, 8}, .budget_bytes = 24});
    for (int step = 0; step < 4; ++step) {
      play(player, 4, phases);
      EXPECT_EQ(player.policy().recordings(Pass::Train), 1) << phases << ", step " << step;
      if (step < 3) player.forget();
    }
  }
}

TEST(ResidencyPolicy, AnEvaluationInsideATrainingPassLeavesItsScheduleAlone) {
  Player player({.unit_bytes = {8, 8, 8, 8}, .budget_bytes = 16});
  const std::vector<int> order = forward_backward(4);
  const auto half = std::span(order).first(4), rest = std::span(order).subspan(4);
  const auto train = [&](bool evaluates) {
    player.apply(player.policy().begin_pass(Pass::Train));
    for (int unit : half) player.touch({unit});
    if (evaluates) player.pass({2, 0}, Pass::Evaluate);
    EXPECT_TRUE(player.policy().in_pass(Pass::Train));
    for (int unit : rest) player.touch({unit});
    player.apply(player.policy().end_pass());
    player.forget();
  };
  for (const bool evaluates : {false, true, true, false}) train(evaluates);
  EXPECT_EQ(player.policy().recordings(Pass::Train), 1);
  EXPECT_EQ(player.policy().recordings(Pass::Evaluate), 1);
  EXPECT_EQ(player.policy().schedule(Pass::Train), (std::vector<int>{0, 1, 2, 3, 2, 1, 0}));
  EXPECT_EQ(player.policy().schedule(Pass::Evaluate), (std::vector<int>{2, 0}));
}

TEST(ResidencyPolicy, AnAbandonedPassLeavesTheScheduleAlone) {
  Player player({.unit_bytes = {8, 8, 8}, .budget_bytes = 16});
  player.pass({0, 1, 2, 1, 0});
  player.apply(player.policy().begin_pass(Pass::Train));
  player.touch({2});
  player.apply(player.policy().abandon_passes());
  EXPECT_FALSE(player.policy().in_pass());
  EXPECT_EQ(player.policy().schedule(Pass::Train), (std::vector<int>{0, 1, 2, 1, 0}));
  EXPECT_EQ(player.policy().recordings(Pass::Train), 1);
  player.pass({0, 1, 2, 1, 0});
  EXPECT_EQ(player.policy().recordings(Pass::Train), 1);
}

TEST(ResidencyPolicy, FollowsAnOrderThatChanges) {
  Player player({.unit_bytes = {8, 8, 8, 8, 8}, .budget_bytes = 16});
  for (const Pass kind : {Pass::Train, Pass::Evaluate}) {
    player.pass({0, 1, 2, 3, 4}, kind);
    player.pass({0, 2, 4}, kind);        // units left out
    player.pass({0, 3, 1, 3, 4}, kind);  // others, in another order
    EXPECT_EQ(player.policy().schedule(kind), (std::vector<int>{0, 3, 1, 3, 4}));
    EXPECT_EQ(player.policy().recordings(kind), 3);
  }
}

TEST(ResidencyPolicy, EvaluationHasItsOwnSchedule) {
  Player player({.unit_bytes = {8, 8, 8}, .budget_bytes = 8});
  player.pass({0, 1, 2, 1, 0});
  player.pass({2, 1}, Pass::Evaluate);
  EXPECT_EQ(player.policy().schedule(Pass::Train), (std::vector<int>{0, 1, 2, 1, 0}));
  EXPECT_EQ(player.policy().schedule(Pass::Evaluate), (std::vector<int>{2, 1}));
}

TEST(ResidencyPolicy, AnOperatorMayNeedMoreThanTheBudget) {
  Player player({.unit_bytes = {8, 8, 8}, .budget_bytes = 8});
  player.apply(player.policy().begin_pass(Pass::Train));
  player.touch({0, 1, 2});
  EXPECT_EQ(player.peak(), 24);
  player.touch({1});
  player.apply(player.policy().trim());
  EXPECT_LE(player.policy().resident_bytes(), 8);
}

// Fewest fetches any eviction order can do for units of equal size, by search.
int fewest_fetches(const std::vector<int>& order, size_t slots) {
  std::map<std::pair<size_t, std::set<int>>, int> known;
  std::function<int(size_t, std::set<int>)> search = [&](size_t at, std::set<int> held) -> int {
    if (at == order.size()) return 0;
    auto [entry, fresh] = known.try_emplace({at, held}, 0);
    if (!fresh) return entry->second;
    int best = 1 << 20;
    if (held.contains(order[at])) {
      best = search(at + 1, held);
    } else if (held.size() < slots) {
      auto more = held;
      more.insert(order[at]);
      best = 1 + search(at + 1, more);
    } else {
      for (int out : held) {
        auto other = held;
        other.erase(out);
        other.insert(order[at]);
        best = std::min(best, 1 + search(at + 1, other));
      }
    }
    return known[{at, held}] = best;
  };
  return search(0, {});
}

TEST(ResidencyPolicy, IsOptimalOnceTheScheduleIsKnown) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 200; ++trial) {
    const int units = 2 + static_cast<int>(random() % 4);
    const size_t slots = 1 + random() % static_cast<size_t>(units);
    std::vector<int> order(3 + random() % 8);
    for (int& unit : order) unit = static_cast<int>(random() % static_cast<size_t>(units));
    for (int64_t prefetch : {int64_t{0}, int64_t{1} << 40}) {
      Player player({.unit_bytes = std::vector<int64_t>(static_cast<size_t>(units), 8),
                     .budget_bytes = static_cast<int64_t>(slots) * 8,
                     .prefetch_bytes = prefetch});
      player.pass(order);
      EXPECT_EQ(player.pass(order), fewest_fetches(order, slots)) << "prefetch " << prefetch;
    }
  }
}

TEST(ResidencyPolicy, StaysInsideBudgetOnRandomPlay) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 300; ++trial) {
    zero::ResidencyOptions options;
    int64_t largest = 0;
    for (int i = 0, n = 1 + static_cast<int>(random() % 7); i < n; ++i) {
      options.unit_bytes.push_back(static_cast<int64_t>(random() % 50));
      largest = std::max(largest, options.unit_bytes.back());
    }
    options.budget_bytes = static_cast<int64_t>(random() % 120);
    options.prefetch_bytes = static_cast<int64_t>(random() % 120);
    Player player(options);
    for (int pass = 0; pass < 4; ++pass) {
      std::vector<int> order(random() % 12);
      for (int& unit : order) unit = static_cast<int>(random() % options.unit_bytes.size());
      player.pass(order, random() % 2 == 0 ? Pass::Train : Pass::Evaluate);
    }
    EXPECT_LE(player.peak(), std::max(options.budget_bytes, largest));
  }
}

TEST(ResidencyPolicy, RefusesNegativeSizes) {
  EXPECT_THROW(ResidencyPolicy({.unit_bytes = {1}, .budget_bytes = -1}), zero::Error);
  EXPECT_THROW(ResidencyPolicy({.unit_bytes = {1}, .budget_bytes = 0, .prefetch_bytes = -1}), zero::Error);
}
}  // namespace
