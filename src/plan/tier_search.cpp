#include "plan/tier_search.h"

#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

namespace zero {
namespace {

using Units = std::span<const std::vector<UnitOption>>;

/// Options of the units so far, as their sums.
struct Partial {
  int64_t begin_bytes = 0, end_bytes = 0, host_bytes = 0, disk_bytes = 0;
  double seconds = 0;
  int parent = -1, option = -1;  // among the partials of the unit before; of this unit

  auto sums() const { return std::tie(seconds, end_bytes, begin_bytes, host_bytes, disk_bytes); }
  int64_t memory() const { return begin_bytes + end_bytes; }
  bool beats(const Partial& other) const {
    return seconds <= other.seconds && end_bytes <= other.end_bytes && begin_bytes <= other.begin_bytes &&
           host_bytes <= other.host_bytes && disk_bytes <= other.disk_bytes;
  }
};

/// The least that the units from each on take.
struct Least {
  int64_t begin_bytes = 0, end_bytes = 0, host_bytes = 0, disk_bytes = 0;
};

/// One search, with buffers of at most so many bytes.
class Search {
 public:
  Search(Units units, const TierBounds& bounds, int64_t ring_bytes)
      : units_(units), bounds_(bounds), ring_bytes_(ring_bytes) {
    size_t options = 1;
    for (const auto& unit : units_) options = std::max(options, unit.size());
    constexpr size_t kWork = 150'000, kFewest = 64, kMost = 4096;
    most_ = std::clamp(kWork / (options * std::max<size_t>(1, units_.size())), kFewest, kMost);
    bounds_.begin_bytes -= ring_bytes;
    bounds_.end_bytes -= ring_bytes;
  }

  /// Nothing where no choice fits or costs less than `limit`.
  std::optional<std::vector<int>> run(double& limit) {
    find_least();
    std::vector<std::vector<Partial>> steps{{Partial{}}};
    for (size_t unit = 0; unit < units_.size(); ++unit) {
      steps.push_back(extend(steps.back(), unit, limit));
      if (steps.back().empty()) return std::nullopt;
    }
    const auto best =
        std::min_element(steps.back().begin(), steps.back().end(),
                         [](const Partial& a, const Partial& b) { return a.sums() < b.sums(); });
    limit = best->seconds;
    std::vector<int> chosen(units_.size());
    auto at = static_cast<size_t>(best - steps.back().begin());
    for (size_t unit = units_.size(); unit-- > 0;) {
      const Partial& partial = steps[unit + 1][at];
      chosen[unit] = partial.option;
      at = static_cast<size_t>(partial.parent);
    }
    return chosen;
  }

 private:
  bool is_allowed(const UnitOption& option) const { return option.ring_bytes <= ring_bytes_; }

  void find_least() {
    constexpr int64_t kNone = std::numeric_limits<int64_t>::max() / 4;
    least_.assign(units_.size() + 1, {});
    for (size_t unit = units_.size(); unit-- > 0;) {
      Least own{kNone, kNone, kNone, kNone};
      for (const UnitOption& option : units_[unit]) {
        if (!is_allowed(option)) continue;
        own.begin_bytes = std::min(own.begin_bytes, option.begin_bytes);
        own.end_bytes = std::min(own.end_bytes, option.end_bytes);
        own.host_bytes = std::min(own.host_bytes, option.host_bytes);
        own.disk_bytes = std::min(own.disk_bytes, option.disk_bytes);
      }
      const Least& rest = least_[unit + 1];
      least_[unit] = {own.begin_bytes + rest.begin_bytes, own.end_bytes + rest.end_bytes,
                      own.host_bytes + rest.host_bytes, own.disk_bytes + rest.disk_bytes};
    }
  }

  std::vector<Partial> extend(const std::vector<Partial>& before, size_t unit, double limit) const {
    const Least& rest = least_[unit + 1];
    std::vector<Partial> after;
    for (size_t i = 0; i < before.size(); ++i)
      for (size_t j = 0; j < units_[unit].size(); ++j) {
        const UnitOption& option = units_[unit][j];
        if (!is_allowed(option)) continue;
        const Partial& from = before[i];
        const Partial to{.begin_bytes = from.begin_bytes + option.begin_bytes,
                         .end_bytes = from.end_bytes + option.end_bytes,
                         .host_bytes = from.host_bytes + option.host_bytes,
                         .disk_bytes = from.disk_bytes + option.disk_bytes,
                         .seconds = from.seconds + option.seconds,
                         .parent = static_cast<int>(i),
                         .option = static_cast<int>(j)};
        const bool fits = to.begin_bytes + rest.begin_bytes <= bounds_.begin_bytes &&
                          to.end_bytes + rest.end_bytes <= bounds_.end_bytes &&
                          to.host_bytes + rest.host_bytes <= bounds_.host_bytes &&
                          to.disk_bytes + rest.disk_bytes <= bounds_.disk_bytes;
        if (fits && to.seconds < limit) after.push_back(to);
      }
    return prune(std::move(after));
  }

  // Those that no other beats; of many the cheapest for each amount of memory, and the extremes.
  std::vector<Partial> prune(std::vector<Partial> all) const {
    std::sort(all.begin(), all.end(), [](const Partial& a, const Partial& b) { return a.sums() < b.sums(); });
    all.erase(std::unique(all.begin(), all.end(),
                          [](const Partial& a, const Partial& b) { return a.sums() == b.sums(); }),
              all.end());
    std::vector<Partial> kept = all.size() > 4 * most_ ? cheapest_by_memory(all, 4 * most_) : std::move(all);
    std::vector<Partial> front;
    for (const Partial& partial : kept)
      if (std::none_of(front.begin(), front.end(),
                       [&](const Partial& other) { return other.beats(partial); }))
        front.push_back(partial);
    return front.size() > most_ ? cheapest_by_memory(front, most_) : front;
  }

  // `all` by rising cost. One for each of `count` ranges of memory, and the least of every sum.
  static std::vector<Partial> cheapest_by_memory(const std::vector<Partial>& all, size_t count) {
    const auto [least, most] = std::minmax_element(
        all.begin(), all.end(), [](const Partial& a, const Partial& b) { return a.memory() < b.memory(); });
    const double range = static_cast<double>(most->memory() - least->memory()) + 1;
    std::set<size_t> taken;
    std::vector<char> is_filled(count);
    for (size_t i = 0; i < all.size(); ++i) {
      const double share = static_cast<double>(all[i].memory() - least->memory()) / range;
      char& filled = is_filled[static_cast<size_t>(share * static_cast<double>(count))];
      if (!filled) taken.insert(i);
      filled = 1;
    }
    const auto take_least = [&](auto sum) {
      const auto found = std::min_element(
          all.begin(), all.end(), [&](const Partial& a, const Partial& b) { return sum(a) < sum(b); });
      taken.insert(static_cast<size_t>(found - all.begin()));
    };
    take_least([](const Partial& p) { return std::pair(p.end_bytes, p.begin_bytes); });
    take_least([](const Partial& p) { return std::pair(p.begin_bytes, p.end_bytes); });
    take_least([](const Partial& p) { return std::pair(p.disk_bytes, p.memory()); });
    take_least([](const Partial& p) { return std::pair(p.host_bytes, p.memory()); });
    std::vector<Partial> kept;
    for (const size_t i : taken) kept.push_back(all[i]);
    return kept;
  }

  Units units_;
  TierBounds bounds_;
  int64_t ring_bytes_;
  size_t most_ = 0;
  std::vector<Least> least_;
};

std::set<int64_t> rings_of(Units units) {
  std::set<int64_t> rings;
  for (const auto& unit : units)
    for (const UnitOption& option : unit) rings.insert(option.ring_bytes);
  return rings;
}

}  // namespace

// With the buffers' size given, what is left are sums. Larger ones let more options in.
std::optional<std::vector<int>> search_tiers(Units units, const TierBounds& bounds) {
  std::optional<std::vector<int>> best;
  double limit = std::numeric_limits<double>::infinity();
  for (const int64_t ring_bytes : rings_of(units))
    if (auto found = Search(units, bounds, ring_bytes).run(limit)) best = std::move(found);
  return best;
}

std::vector<int> least_choice(Units units, int64_t begin_more, int64_t end_more) {
  int64_t least = std::numeric_limits<int64_t>::max();
  std::vector<int> best;
  for (const int64_t ring_bytes : rings_of(units)) {
    int64_t begin = begin_more + ring_bytes, end = end_more + ring_bytes;
    std::vector<int> chosen;
    for (const auto& unit : units) {
      int lowest = -1;
      for (int i = 0; i < std::ssize(unit); ++i) {
        const UnitOption& option = unit[static_cast<size_t>(i)];
        if (option.ring_bytes > ring_bytes) continue;
        const auto rank_of = [](const UnitOption& one) { return std::pair(one.end_bytes, one.begin_bytes); };
        if (lowest < 0 || rank_of(option) < rank_of(unit[static_cast<size_t>(lowest)])) lowest = i;
      }
      if (lowest < 0) break;
      chosen.push_back(lowest);
      begin += unit[static_cast<size_t>(lowest)].begin_bytes;
      end += unit[static_cast<size_t>(lowest)].end_bytes;
    }
    if (chosen.size() != units.size() || std::max(begin, end) >= least) continue;
    least = std::max(begin, end);
    best = std::move(chosen);
  }
  return best;
}

}  // namespace zero
