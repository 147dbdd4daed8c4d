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

ResidencyPolicy::ResidencyPolicy(ResidencyOptions options)
    : budget_bytes_(options.budget_bytes), prefetch_bytes_(options.prefetch_bytes) {
  require(budget_bytes_ >= 0, ErrorKind::Config, "budget_bytes", "expected >= 0, got " + std::to_string(budget_bytes_));
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
    make_room(needed.bytes, kNever, units, actions);
    fetch(unit, false, actions);
  }
  prefetch(units, actions);
  return actions;
}

ResidencyPolicy::Actions ResidencyPolicy::trim() {
  Actions actions;
  make_room(0, kNever, {}, actions);
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
  make_room(0, kNever, {}, actions);
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

// Follows the schedule. A unit that comes later than foreseen means that others were left out: go on from there.
// One that the rest of the schedule does not hold is an extra: stay.
void ResidencyPolicy::advance(int unit) {
  units_[static_cast<size_t>(unit)].last_touch = ++clock_;
  if (record_.empty() || record_.back() != unit) record_.push_back(unit);
  const Schedule& schedule = current();
  if (position_ > 0 && position_ <= schedule.order.size() && schedule.order[position_ - 1] == unit) return;
  const auto& places = schedule.positions[static_cast<size_t>(unit)];
  auto next = std::lower_bound(places.begin(), places.end(), static_cast<int>(position_));
  if (next != places.end()) position_ = static_cast<size_t>(*next) + 1;
}

// Touches from now until the unit is used again; kNever if this pass does not need it and the next one cannot use it.
int64_t ResidencyPolicy::next_use(int unit) const {
  const Schedule& schedule = current();
  const auto& places = schedule.positions[static_cast<size_t>(unit)];
  auto next = std::lower_bound(places.begin(), places.end(), static_cast<int>(position_));
  if (next != places.end()) return *next - static_cast<int64_t>(position_);
  if (!values_last_ || places.empty()) return kNever;
  return static_cast<int64_t>(schedule.order.size() - position_) + places.front();
}

// Evicts until `bytes` more fit, sparing `keep` and everything used before `used_before`. False, with nothing evicted
// for it, if that is impossible.
bool ResidencyPolicy::make_room(int64_t bytes, int64_t used_before, std::span<const int> keep, Actions& actions) {
  int64_t excess = resident_bytes_ - budget_bytes_ + bytes;
  if (budget_bytes_ == kNever || excess <= 0) return true;
  struct Candidate {
    int unit;
    int64_t next, last;
  };
  std::vector<Candidate> candidates;
  for (int i = 0; i < static_cast<int>(units_.size()); ++i) {
    const Unit& unit = units_[static_cast<size_t>(i)];
    if (!unit.resident || unit.bytes == 0 || contains(keep, i)) continue;
    int64_t next = next_use(i);
    if (used_before != kNever && next <= used_before) continue;
    candidates.push_back({i, next, unit.last_touch});
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.next != b.next) return a.next > b.next;
    return std::pair(a.last, a.unit) < std::pair(b.last, b.unit);
  });
  size_t count = 0;
  for (; count < candidates.size() && excess > 0; ++count)
    excess -= units_[static_cast<size_t>(candidates[count].unit)].bytes;
  if (excess > 0 && used_before != kNever) return false;
  for (size_t i = 0; i < count; ++i) evict(candidates[i].unit, actions);
  return excess <= 0;
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

// Fetches what the schedule needs next, in order, while it fits and nothing is thrown out that is needed sooner.
void ResidencyPolicy::prefetch(std::span<const int> keep, Actions& actions) {
  const Schedule& schedule = current();
  if (schedule.empty() || prefetch_bytes_ == 0) return;
  size_t length = schedule.order.size();
  size_t reach = values_last_ ? length + position_ : length;
  for (size_t i = position_; i < reach; ++i) {
    int unit = schedule.order[i % length];
    const Unit& wanted = units_[static_cast<size_t>(unit)];
    if (wanted.resident) continue;
    if (ahead_bytes_ + wanted.bytes > prefetch_bytes_) return;
    if (!make_room(wanted.bytes, static_cast<int64_t>(i - position_), keep, actions)) return;
    fetch(unit, true, actions);
  }
}

}  // namespace zero
