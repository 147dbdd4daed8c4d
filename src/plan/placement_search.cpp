#include "plan/placement_search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

namespace zero {
namespace {

using Choice = std::vector<int>;

constexpr size_t kTriedAll = 1024;  // placements, at most, that are all tried
constexpr int kCorrections = 8;     // of what sums over units are wrong by
constexpr int kImprovements = 512;  // plans made to improve one
constexpr int64_t kSlackBytes =
    4 << 20;  // about two pages of sums (backward_play.h), which come and go whole

int64_t peak_of(const PlacementCost& cost) { return std::max(cost.bytes.begin_bytes, cost.bytes.end_bytes); }

bool fits(const TierBounds& bytes, const TierBounds& bounds) {
  return bytes.begin_bytes <= bounds.begin_bytes && bytes.end_bytes <= bounds.end_bytes &&
         bytes.host_bytes <= bounds.host_bytes && bytes.disk_bytes <= bounds.disk_bytes;
}

/// A way to look at costs: less is better.
using Worth = std::function<double(const PlacementCost&)>;

class Finder {
 public:
  explicit Finder(const PlacementSearch& search) : search_(search), units_(search.units) {}

  bool is_small() const {
    size_t placements = 1;
    for (const auto& unit : units_)
      if ((placements *= unit.size()) > kTriedAll) return false;
    return true;
  }

  std::optional<Choice> cheapest_of_all() const {
    std::vector<std::pair<double, Choice>> by_seconds;
    for (Choice& choice : all()) by_seconds.emplace_back(sums_of(choice).seconds, std::move(choice));
    std::sort(by_seconds.begin(), by_seconds.end());
    std::optional<Choice> best;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [seconds, choice] : by_seconds) {
      if (seconds >= least) break;
      const PlacementCost cost = search_.cost_of(choice);
      if (!fits(cost.bytes, search_.bounds) || cost.seconds >= least) continue;
      least = cost.seconds;
      best = choice;
    }
    return best;
  }

  Choice leanest_of_all() const {
    Choice best;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (const Choice& choice : all()) {
      const int64_t peak = peak_of(search_.cost_of(choice));
      if (peak >= least) continue;
      least = peak;
      best = choice;
    }
    return best;
  }

  // The search over sums says what is best if they were wrong by what the one before was wrong by.
  std::optional<Choice> corrected() const {
    TierBounds more = search_.more;
    std::set<Choice> seen;
    std::optional<Choice> best;
    double least = std::numeric_limits<double>::infinity();
    for (int i = 0; i < kCorrections; ++i) {
      const TierBounds& bounds = search_.bounds;
      const auto chosen = search_tiers(units_, {.begin_bytes = bounds.begin_bytes - more.begin_bytes,
                                                .end_bytes = bounds.end_bytes - more.end_bytes,
                                                .host_bytes = bounds.host_bytes - more.host_bytes,
                                                .disk_bytes = bounds.disk_bytes});
      if (!chosen || !seen.insert(*chosen).second) break;
      const PlacementCost cost = search_.cost_of(*chosen);
      if (fits(cost.bytes, bounds) && cost.seconds < least) {
        least = cost.seconds;
        best = *chosen;
      }
      const TierBounds sums = sums_of(*chosen).bytes;
      more = {.begin_bytes = cost.bytes.begin_bytes - sums.begin_bytes,
              .end_bytes = cost.bytes.end_bytes - sums.end_bytes,
              .host_bytes = cost.bytes.host_bytes - sums.host_bytes};
    }
    return best;
  }

  Choice leanest_of_sums() const {
    return improved(least_choice(units_, search_.more.begin_bytes, search_.more.end_bytes),
                    {.begin_bytes = kAny, .end_bytes = kAny, .host_bytes = kAny, .disk_bytes = kAny},
                    [](const PlacementCost& cost) { return static_cast<double>(peak_of(cost)); });
  }

  // One unit's option after the other, and those of two, as long as that is worth it.
  Choice improved(Choice choice, const TierBounds& bounds, const Worth& worth) const {
    PlacementCost cost = search_.cost_of(choice);
    for (int left = kImprovements; left > 0;) {
      bool has_improved = false;
      for (const Move& move : moves(choice, cost, bounds, worth, left)) {
        --left;
        Choice other = choice;
        move.apply(other);
        const PlacementCost of_other = search_.cost_of(other);
        if (!fits(of_other.bytes, bounds) || worth(of_other) >= worth(cost)) continue;
        choice = other;
        cost = of_other;
        has_improved = true;
        break;
      }
      if (!has_improved) break;
    }
    return choice;
  }

 private:
  static constexpr int64_t kAny = std::numeric_limits<int64_t>::max() / 4;

  /// One unit's option, and perhaps another's.
  struct Move {
    double worth = 0;
    size_t unit = 0, second_unit = 0;
    int option = 0, second_option = -1;

    void apply(Choice& choice) const {
      choice[unit] = option;
      if (second_option >= 0) choice[second_unit] = second_option;
    }
  };

  /// What a choice should take once some options were changed.
  struct Expected {
    PlacementCost cost = {};  // without buffers
    int64_t ring_bytes = 0;

    Expected with(const UnitOption& before, const UnitOption& after) const {
      Expected changed = *this;
      TierBounds& bytes = changed.cost.bytes;
      bytes.begin_bytes += after.begin_bytes - before.begin_bytes;
      bytes.end_bytes += after.end_bytes - before.end_bytes;
      bytes.host_bytes += after.host_bytes - before.host_bytes;
      bytes.disk_bytes += after.disk_bytes - before.disk_bytes;
      changed.cost.seconds += after.seconds - before.seconds;
      changed.ring_bytes = std::max(ring_bytes, after.ring_bytes);
      return changed;
    }
    PlacementCost all() const {
      PlacementCost cost_with = cost;
      cost_with.bytes.begin_bytes += ring_bytes;
      cost_with.bytes.end_bytes += ring_bytes;
      return cost_with;
    }
  };

  const UnitOption& option(size_t unit, int index) const { return units_[unit][static_cast<size_t>(index)]; }

  PlacementCost sums_of(const Choice& choice) const {
    PlacementCost cost;
    int64_t ring_bytes = 0;
    for (size_t unit = 0; unit < choice.size(); ++unit) {
      const UnitOption& of = option(unit, choice[unit]);
      cost.bytes.begin_bytes += of.begin_bytes;
      cost.bytes.end_bytes += of.end_bytes;
      cost.bytes.host_bytes += of.host_bytes;
      cost.bytes.disk_bytes += of.disk_bytes;
      cost.seconds += of.seconds;
      ring_bytes = std::max(ring_bytes, of.ring_bytes);
    }
    cost.bytes.begin_bytes += ring_bytes;
    cost.bytes.end_bytes += ring_bytes;
    return cost;
  }

  std::vector<Choice> all() const {
    std::vector<Choice> choices{Choice(units_.size())};
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      const size_t before = choices.size();
      for (int index = 1; index < std::ssize(units_[unit]); ++index)
        for (size_t i = 0; i < before; ++i) {
          choices.push_back(choices[i]);
          choices.back()[unit] = index;
        }
    }
    return choices;
  }

  int64_t ring_without(const Choice& choice, size_t without) const {
    int64_t ring_bytes = 0;
    for (size_t unit = 0; unit < choice.size(); ++unit)
      if (unit != without) ring_bytes = std::max(ring_bytes, option(unit, choice[unit]).ring_bytes);
    return ring_bytes;
  }

  // Those that should be better by their sums and may fit, the best `most` of them first.
  std::vector<Move> moves(const Choice& choice, const PlacementCost& cost, TierBounds bounds,
                          const Worth& worth, int most) const {
    bounds.begin_bytes += kSlackBytes;
    bounds.end_bytes += kSlackBytes;
    std::vector<Move> found;
    const auto see = [&](const Expected& expected, Move move) {
      const PlacementCost all = expected.all();
      move.worth = worth(all);
      if (fits(all.bytes, bounds) && move.worth < worth(cost)) found.push_back(move);
    };
    const int64_t ring_bytes = ring_without(choice, units_.size());
    for (size_t a = 0; a < units_.size(); ++a) {
      Expected now{.cost = cost, .ring_bytes = ring_without(choice, a)};
      now.cost.bytes.begin_bytes -= ring_bytes;
      now.cost.bytes.end_bytes -= ring_bytes;
      for (int i = 0; i < std::ssize(units_[a]); ++i) {
        if (i == choice[a]) continue;
        const Expected one = now.with(option(a, choice[a]), option(a, i));
        see(one, {.unit = a, .option = i});
        for (size_t b = a + 1; b < units_.size(); ++b)
          for (int j = 0; j < std::ssize(units_[b]); ++j)
            if (j != choice[b])
              see(one.with(option(b, choice[b]), option(b, j)),
                  {.unit = a, .second_unit = b, .option = i, .second_option = j});
      }
    }
    const auto kept = std::min<ptrdiff_t>(std::ssize(found), most);
    std::partial_sort(found.begin(), found.begin() + kept, found.end(),
                      [](const Move& x, const Move& y) { return x.worth < y.worth; });
    found.resize(static_cast<size_t>(kept));
    return found;
  }

  const PlacementSearch& search_;
  std::span<const std::vector<UnitOption>> units_;
};

}  // namespace

std::optional<std::vector<int>> PlacementSearch::cheapest() const {
  const Finder finder(*this);
  if (finder.is_small()) return finder.cheapest_of_all();
  std::optional<Choice> found = finder.corrected();
  if (!found) {
    found = finder.leanest_of_sums();
    if (!fits(cost_of(*found).bytes, bounds)) return std::nullopt;
  }
  return finder.improved(*std::move(found), bounds, [](const PlacementCost& cost) { return cost.seconds; });
}

std::vector<int> PlacementSearch::leanest() const {
  const Finder finder(*this);
  return finder.is_small() ? finder.leanest_of_all() : finder.leanest_of_sums();
}

}  // namespace zero
