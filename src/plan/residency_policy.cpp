#include "plan/residency_policy.h"

#include <algorithm>
#include <iterator>
#include <set>
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
  for (int i = 0; i < std::ssize(options.unit_bytes); ++i)
    units_.push_back({.bytes = options.unit_bytes[i],
                      .lasting = !options.lasting.empty() && options.lasting[i] != 0,
                      .persistent = !options.persistent.empty() && options.persistent[i] != 0});
  for (PassState& pass : passes_) pass.positions.resize(units_.size());
  state(Pass::Evaluate).values_last = true;
}

ResidencyPolicy::Actions ResidencyPolicy::begin_pass(Pass pass) {
  require(!state(pass).open && !state(Pass::Evaluate).open, ErrorKind::Internal, "residency",
          "a pass begins inside another");
  pass_ = pass;
  PassState& opened = state(pass);
  opened.open = true;
  opened.position = 0;
  opened.record.clear();
  Actions actions;
  prefetch({}, actions);
  return actions;
}

ResidencyPolicy::Actions ResidencyPolicy::touch(std::span<const int> units) {
  Actions actions;
  for (int unit : units) advance(unit);
  for (int unit : units) {
    Unit& needed = units_[unit];
    if (needed.ahead) {
      needed.ahead = false;
      ahead_bytes_ -= needed.bytes;
    }
    if (needed.resident) continue;
    make_room(charged_bytes(unit), units, actions);
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
  PassState& ended = state(pass_);
  require(ended.open, ErrorKind::Internal, "residency", "a pass ends that did not begin");
  record(ended);
  close(ended);
  if (state(Pass::Train).open) pass_ = Pass::Train;
  return trim();
}

ResidencyPolicy::Actions ResidencyPolicy::abandon_passes() {
  for (PassState& pass : passes_) close(pass);
  pass_ = Pass::Train;
  return trim();
}

// What was touched becomes the schedule.
void ResidencyPolicy::record(PassState& pass) {
  if (pass.order == pass.record) return;
  pass.order = pass.record;
  pass.recordings++;
  for (auto& places : pass.positions) places.clear();
  for (int i = 0; i < std::ssize(pass.order); ++i) pass.positions[pass.order[i]].push_back(i);
}

void ResidencyPolicy::close(PassState& pass) {
  pass.open = false;
  pass.position = 0;  // what follows is the next pass, for next_use() below
  for (Unit& unit : units_) unit.ahead = false;
  ahead_bytes_ = 0;
}

void ResidencyPolicy::forget_values(bool all) {
  for (int unit = 0; unit < std::ssize(units_); ++unit)
    if (all || !units_[unit].lasting) set_resident(unit, false);
}

void ResidencyPolicy::set_resident(int unit, bool resident) {
  Unit& changed = units_[unit];
  if (changed.resident == resident) return;
  changed.resident = resident;
  const int64_t more = resident ? changed.bytes : -changed.bytes;
  resident_bytes_ += more;
  if (changed.persistent) persistent_bytes_ += more;
  if (!resident && changed.ahead) {
    changed.ahead = false;
    ahead_bytes_ -= changed.bytes;
  }
}

// Follows the schedule. A unit that comes later than foreseen means that others were left out: go on from
// there. One that the rest of the schedule does not hold is an extra: stay.
void ResidencyPolicy::advance(int unit) {
  PassState& pass = state(pass_);
  units_[unit].last_touch = ++clock_;
  if (pass.record.empty() || pass.record.back() != unit) pass.record.push_back(unit);
  if (pass.position > 0 && pass.position <= std::ssize(pass.order) && pass.order[pass.position - 1] == unit)
    return;
  const auto& places = pass.positions[unit];
  auto next = std::lower_bound(places.begin(), places.end(), pass.position);
  if (next != places.end()) pass.position = *next + 1;
}

// The place in the order at or after `from` where the unit is used; places of the next pass follow if its
// values last. kNever if this pass does not need it any more and the next one cannot use it.
int64_t ResidencyPolicy::next_use(int unit, int64_t from) const {
  const PassState& pass = current();
  const auto& places = pass.positions[unit];
  if (places.empty()) return kNever;
  const int64_t length = std::ssize(pass.order), lap = from / length;
  auto next = std::lower_bound(places.begin(), places.end(), from % length);
  if (next != places.end()) return lap * length + *next;
  const bool lasts = pass.values_last || units_[unit].lasting;
  return lasts ? (lap + 1) * length + places.front() : kNever;
}

// The first of `candidates` that free so many bytes, but for one; of them those are left out again that the
// others make needless, the last ones first. Empty where all together free too little without that one.
std::vector<int> ResidencyPolicy::first_that_free(const Candidates& candidates, int64_t bytes,
                                                  int without) const {
  std::vector<int> chosen;
  int64_t freed = 0;
  for (size_t i = 0; i < candidates.size() && freed < bytes; ++i) {
    const int unit = candidates[i].second;
    if (unit == without) continue;
    chosen.push_back(unit);
    freed += units_[unit].bytes;
  }
  if (freed < bytes && without >= 0) return {};
  for (size_t i = chosen.size(); i-- > 0;) {
    const int64_t needless = freed - units_[chosen[i]].bytes;
    if (needless < bytes) continue;
    freed = needless;
    chosen.erase(chosen.begin() + static_cast<int64_t>(i));
  }
  return chosen;
}

// What evicting them makes the schedule fetch again.
int64_t ResidencyPolicy::bytes_again(std::span<const int> units, int64_t from) const {
  int64_t bytes = 0;
  for (const int unit : units)
    if (next_use(unit, from) != kNever) bytes += units_[unit].bytes;
  return bytes;
}

// The units to evict so that `bytes` more fit, at place `from` of the order: farthest next use first
// (Belady's rule), then least recently touched, unless others cost fewer bytes. Those of `keep` are never
// chosen. May free less than is needed.
std::vector<int> ResidencyPolicy::victims(int64_t bytes, int64_t from, std::span<const int> keep) const {
  if (budget_bytes_ == kNever) return {};
  int64_t excess = resident_bytes_ - persistent_bytes_ + bytes - budget_bytes_;
  if (excess <= 0) return {};
  Candidates candidates;
  for (int i = 0; i < std::ssize(units_); ++i) {
    const Unit& unit = units_[i];
    if (unit.resident && charged_bytes(i) > 0 && !contains(keep, i))
      candidates.emplace_back(next_use(i, from), i);
  }
  std::sort(candidates.begin(), candidates.end(), [this](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first > b.first;
    return units_[a.second].last_touch < units_[b.second].last_touch;
  });
  // Belady's rule is for pages of one size. Of several sizes, one of those chosen may be larger than what is
  // missing, and others in its place may bring fewer bytes to fetch again.
  std::vector<int> best = first_that_free(candidates, excess, /*without=*/-1);
  int64_t least = bytes_again(best, from);
  for (const int without : std::vector<int>(best)) {
    std::vector<int> others = first_that_free(candidates, excess, without);
    const int64_t bytes = bytes_again(others, from);
    if (others.empty() || bytes >= least) continue;
    best = std::move(others);
    least = bytes;
  }
  return best;
}

void ResidencyPolicy::make_room(int64_t bytes, std::span<const int> keep, Actions& actions) {
  for (int unit : victims(bytes, current().position, keep)) evict(unit, actions);
}

void ResidencyPolicy::evict(int unit, Actions& actions) {
  set_resident(unit, false);
  actions.evict.push_back(unit);
}

void ResidencyPolicy::fetch(int unit, bool ahead, Actions& actions) {
  set_resident(unit, true);
  if (ahead) {
    units_[unit].ahead = true;
    ahead_bytes_ += units_[unit].bytes;
  }
  actions.fetch.push_back(unit);
}

// Fetches what the schedule needs next, in order. What a fetch at the time of need would evict may go now if
// nobody uses it until then; otherwise the fetch waits. So prefetching never costs a fetch.
void ResidencyPolicy::prefetch(std::span<const int> keep, Actions& actions) {
  const PassState& pass = current();
  if (pass.order.empty() || prefetch_bytes_ == 0) return;
  const int64_t position = pass.position, length = std::ssize(pass.order);
  const int64_t end = pass.values_last ? position + length : length;
  // Absent units by their next use: a pass of many micro-batches is long, units are few.
  std::set<std::pair<int64_t, int>> wanted;
  const auto want = [&](int unit, int64_t from) {
    if (const int64_t use = next_use(unit, from); use < end) wanted.emplace(use, unit);
  };
  for (int unit = 0; unit < std::ssize(units_); ++unit)
    if (!resident(unit)) want(unit, position);
  while (!wanted.empty()) {
    const auto [use, unit] = *wanted.begin();
    wanted.erase(wanted.begin());
    const int64_t bytes = charged_bytes(unit);
    if (ahead_bytes_ + units_[unit].bytes > prefetch_bytes_ || bytes > budget_bytes_) return;
    const std::vector<int> out = victims(bytes, use, {});
    int64_t freed = 0;
    for (int victim : out) {
      if (contains(keep, victim) || next_use(victim, position) < use) return;
      freed += units_[victim].bytes;
    }
    if (budget_bytes_ != kNever && resident_bytes_ - persistent_bytes_ - freed + bytes > budget_bytes_)
      return;
    for (int victim : out) {
      evict(victim, actions);
      want(victim, use);
    }
    fetch(unit, true, actions);
  }
}

}  // namespace zero
