#include "zero/residency_policy.h"

#include <algorithm>
#include <string>
#include <utility>

#include "zero/error.h"

namespace zero {
namespace {
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

bool contains(std::span<const int> units, int unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}
}  // namespace

ResidencyPolicy::ResidencyPolicy(const ResidencyOptions& options)
    : budget_bytes_(options.budget_bytes), prefetch_bytes_(options.prefetch_bytes) {
  require(budget_bytes_ >= 0, ErrorKind::Config, "budget_bytes",
          "expected >= 0, got " + std::to_string(budget_bytes_));
  require(prefetch_bytes_ >= 0, ErrorKind::Config, "prefetch_bytes",
          "expected >= 0, got " + std::to_string(prefetch_bytes_));
  for (int64_t bytes : options.unit_bytes) units_.push_back({.bytes = bytes});
  for (Schedule& schedule : schedules_) schedule.positions.resize(units_.size());
}

ResidencyPolicy::Actions ResidencyPolicy::begin_pass(Pass pass, bool values_last) {
  require(!in_pass_, ErrorKind::Internal, "residency", "a pass begins inside another");
  pass_ = pass;
  values_last_ = values_last;
  in_pass_ = true;
  position_ = 0;
  record_.clear();
  Actions actions;
  prefetch({}, actions);
  return actions;
}

ResidencyPolicy::Actions ResidencyPolicy::touch(std::span<const int> units) {
  Actions actions;
  for (int unit : units) advance(unit);
  for (int unit : units) {
    Unit& needed = units_[static_cast<size_t>(unit)];
    if (needed.ahead) {
      needed.ahead = false;
      ahead_bytes_ -= needed.bytes;
    }
    if (needed.resident) continue;
    make_room(needed.bytes, units, actions);
    fetch(unit, false, actions);
  }
  prefetch(units, actions);
  return actions;
}

ResidencyPolicy::Actions ResidencyPolicy::trim() {
  Actions actions;
  make_room(0, {}, actions);
  return actions;
}

ResidencyPolicy::Actions ResidencyPolicy::end_pass() {
  require(in_pass_, ErrorKind::Internal, "residency", "a pass ends that did not begin");
  Schedule& schedule = schedules_[static_cast<size_t>(pass_)];
  if (schedule.order != record_) {
    schedule.order = record_;
    for (auto& places : schedule.positions) places.clear();
    for (size_t i = 0; i < record_.size(); ++i)
      schedule.positions[static_cast<size_t>(record_[i])].push_back(static_cast<int>(i));
  }
  for (Unit& unit : units_) unit.ahead = false;
  ahead_bytes_ = 0;
  position_ = 0;  // what follows is the next pass, for next_use() below
  Actions actions;
  make_room(0, {}, actions);
  in_pass_ = false;
  return actions;
}

void ResidencyPolicy::forget_values() {
  for (Unit& unit : units_) unit.resident = unit.ahead = false;
  resident_bytes_ = ahead_bytes_ = 0;
}

void ResidencyPolicy::set_resident(int unit, bool resident) {
  Unit& changed = units_[static_cast<size_t>(unit)];
  if (changed.resident == resident) return;
  changed.resident = resident;
  resident_bytes_ += resident ? changed.bytes : -changed.bytes;
  if (!resident && changed.ahead) {
    changed.ahead = false;
    ahead_bytes_ -= changed.bytes;
  }
}

// Follows the schedule. A unit that comes later than foreseen means that others were left out: go on from
// there. One that the rest of the schedule does not hold is an extra: stay.
void ResidencyPolicy::advance(int unit) {
  units_[static_cast<size_t>(unit)].last_touch = ++clock_;
  if (record_.empty() || record_.back() != unit) record_.push_back(unit);
  const Schedule& schedule = current();
  if (position_ > 0 && position_ <= schedule.order.size() && schedule.order[position_ - 1] == unit) return;
  const auto& places = schedule.positions[static_cast<size_t>(unit)];
  auto next = std::lower_bound(places.begin(), places.end(), static_cast<int>(position_));
  if (next != places.end()) position_ = static_cast<size_t>(*next) + 1;
}

// The place in the order at or after `from` where the unit is used; places of the next pass follow if its
// values last. kNever if this pass does not need it any more and the next one cannot use it.
int64_t ResidencyPolicy::next_use(int unit, size_t from) const {
  const Schedule& schedule = current();
  const auto& places = schedule.positions[static_cast<size_t>(unit)];
  if (places.empty()) return kNever;
  const size_t length = schedule.order.size(), lap = from / length;
  auto next = std::lower_bound(places.begin(), places.end(), static_cast<int>(from % length));
  if (next != places.end()) return static_cast<int64_t>(lap * length) + *next;
  return values_last_ ? static_cast<int64_t>((lap + 1) * length) + places.front() : kNever;
}

// The units to evict so that `bytes` more fit, by Belady's rule at place `from` of the order: farthest next
// use first, then least recently touched. Those of `keep` are never chosen. May free less than is needed.
std::vector<int> ResidencyPolicy::victims(int64_t bytes, size_t from, std::span<const int> keep) const {
  if (budget_bytes_ == kNever) return {};
  int64_t excess = resident_bytes_ + bytes - budget_bytes_;
  if (excess <= 0) return {};
  std::vector<std::pair<int64_t, int>> candidates;
  for (int i = 0; i < static_cast<int>(units_.size()); ++i) {
    const Unit& unit = units_[static_cast<size_t>(i)];
    if (unit.resident && unit.bytes > 0 && !contains(keep, i)) candidates.emplace_back(next_use(i, from), i);
  }
  std::sort(candidates.begin(), candidates.end(), [this](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first > b.first;
    return units_[static_cast<size_t>(a.second)].last_touch <
           units_[static_cast<size_t>(b.second)].last_touch;
  });
  std::vector<int> chosen;
  for (size_t i = 0; i < candidates.size() && excess > 0; ++i) {
    chosen.push_back(candidates[i].second);
    excess -= units_[static_cast<size_t>(candidates[i].second)].bytes;
  }
  return chosen;
}

void ResidencyPolicy::make_room(int64_t bytes, std::span<const int> keep, Actions& actions) {
  for (int unit : victims(bytes, position_, keep)) evict(unit, actions);
}

void ResidencyPolicy::evict(int unit, Actions& actions) {
  set_resident(unit, false);
  actions.evict.push_back(unit);
}

void ResidencyPolicy::fetch(int unit, bool ahead, Actions& actions) {
  set_resident(unit, true);
  if (ahead) {
    units_[static_cast<size_t>(unit)].ahead = true;
    ahead_bytes_ += units_[static_cast<size_t>(unit)].bytes;
  }
  actions.fetch.push_back(unit);
}

// Fetches what the schedule needs next, in order. What a fetch at the time of need would evict may go now if
// nobody uses it until then; otherwise the fetch waits. So prefetching never costs a fetch.
void ResidencyPolicy::prefetch(std::span<const int> keep, Actions& actions) {
  const Schedule& schedule = current();
  if (schedule.empty() || prefetch_bytes_ == 0) return;
  const size_t length = schedule.order.size();
  const size_t end = values_last_ ? position_ + length : length;
  for (size_t i = position_; i < end; ++i) {
    const int unit = schedule.order[i % length];
    const Unit& wanted = units_[static_cast<size_t>(unit)];
    if (wanted.resident) continue;
    if (ahead_bytes_ + wanted.bytes > prefetch_bytes_ || wanted.bytes > budget_bytes_) return;
    const std::vector<int> out = victims(wanted.bytes, i, {});
    int64_t freed = 0;
    for (int victim : out) {
      if (contains(keep, victim) || next_use(victim, position_) < static_cast<int64_t>(i)) return;
      freed += units_[static_cast<size_t>(victim)].bytes;
    }
    if (budget_bytes_ != kNever && resident_bytes_ - freed + wanted.bytes > budget_bytes_) return;
    for (int victim : out) evict(victim, actions);
    fetch(unit, true, actions);
  }
}

}  // namespace zero
