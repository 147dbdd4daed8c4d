#include "sharding/residency.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <array>
#include <utility>

#include "compute/memory_purpose.h"
#include "compute/wait_place.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

bool keeps_slabs(const Plan& plan) { return plan.placements.parameter != Placement::Shard; }

ResidencyOptions policy_options(const std::vector<Unit>& units, const Plan& plan) {
  ResidencyOptions result;
  result.prefetch_bytes = plan.prefetch_bytes;
  for (const Unit& unit : units) {
    const bool stays = plan.shard_ranks == 1 && !unit.is_away();
    result.unit_bytes.push_back(stays ? 0 : unit.layout.slab_bytes());
    result.lasting.push_back(!unit.layout.trainable);
    result.persistent.push_back(unit.layout.persistent);
  }
  if (!keeps_slabs(plan)) result.budget_bytes = plan.budget_bytes;
  return result;
}

// The engine's own work on slabs: no interception, no autograd.
struct SlabWork {
  BypassIntercept bypass;
  c10::NoGradGuard no_grad;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
};

}  // namespace

Residency::Residency(std::vector<Unit>& units, Group shard_group, const Plan& plan, Trace* trace, bool seals)
    : units_(units),
      shard_group_(std::move(shard_group)),
      overlap_(plan.overlap),
      persistent_(keeps_slabs(plan)),
      trace_(trace),
      seals_(seals),
      budget_bytes_(plan.budget_bytes),
      policy_(policy_options(units, plan)) {
  for (Unit& unit : units_) {
    unit.tag->residency = this;
    if (unit.is_beside_device() && !link_) link_.emplace(unit.slab.device());
    if (unit.state == SlabState::Resident) policy_.set_resident(unit.index, true);
  }
  seal_all();
}

// What is resident stays readable. Shards must outlive their copies.
Residency::~Residency() {
  try {
    for (Unit& unit : units_) unit.fetch.upload.wait();
    let_go_of_shards(/*all=*/true);
  } catch (...) {  // a device that failed has told its users
  }
  for (Unit& unit : units_) {
    unit.tag->residency = nullptr;
    if (unit.state == SlabState::Resident && !unit.is_open) unit.expose();
  }
}

template <class Act>
void Residency::at_pass_border(Act act) {
  const std::lock_guard lock(mutex_);
  end_span();
  last_needed_ = -1;
  apply(act());
  seal_all();
}

void Residency::begin_pass(ResidencyPolicy::Pass pass) {
  at_pass_border([&] { return policy_.begin_pass(pass); });
}

void Residency::trim() {
  at_pass_border([&] { return policy_.trim(); });
}

void Residency::end_pass() {
  at_pass_border([&] { return policy_.end_pass(); });
}

void Residency::abandon_passes() {
  at_pass_border([&] { return policy_.abandon_passes(); });
}

void Residency::need(std::span<const int> units) {
  const std::lock_guard lock(mutex_);
  if (units.size() == 1 && units[0] == last_needed_) return;
  end_span();
  const ResidencyPolicy::Actions actions = policy_.touch(units);
  for (int unit : actions.fetch)
    if (std::find(units.begin(), units.end(), unit) != units.end()) counters_.awaited_gathers++;
  apply(actions);
  for (int unit : units) open(unit);
  last_needed_ = units.size() == 1 ? units[0] : -1;
  if (trace_ == nullptr || units.empty()) return;
  computing_ = units.back();
  computing_since_ = Trace::Clock::now();
}

// Work belongs to the unit that was needed last.
void Residency::end_span() {
  const int unit = std::exchange(computing_, -1);
  if (unit < 0) return;
  trace_->span(Trace::Row::Compute, units_[unit].layout.name, computing_since_, Trace::Clock::now());
}

void Residency::apply(const ResidencyPolicy::Actions& actions) {
  let_go_of_shards(/*all=*/false);
  gather_what_was_read();
  for (int unit : actions.evict) drop(unit);
  for (int unit : actions.fetch) start(unit);
}

void Residency::start(int index) {
  Unit& unit = units_[index];
  if (unit.state != SlabState::Absent && unit.state != SlabState::Stale) return;
  SlabWork own;
  if (!unit.full.defined()) allocate(unit);
  static constexpr std::array kShard{kParameterState};
  unit.fetch.shard = unit.states->lend_ahead(index, kShard);
  if (unit.is_on_disk()) {
    unit.move_to(SlabState::Reading);
    reading_.push_back(index);
  } else {
    start_gather(index);
  }
  if (!overlap_) finish(index);
}

// In the order in which the reads began, whichever is over first.
void Residency::gather_what_was_read() {
  while (!reading_.empty()) {
    const int index = reading_.front();
    {
      const WaitPlace place("disk");
      units_[index].fetch.shard.arrive();
    }
    reading_.pop_front();
    start_gather(index);
  }
}

void Residency::start_gather(int index) {
  Unit& unit = units_[index];
  SlabWork own;
  at::Tensor shard = unit.fetch.shard[kParameterState];
  unit.move_to(SlabState::Fetching);
  std::optional<c10::StreamGuard> behind_upload;
  if (unit.is_beside_device()) {
    shard = unit.full.narrow(0, shard_group_.rank() * unit.layout.shard_numel, unit.layout.shard_numel);
    upload(unit, shard);
    behind_upload.emplace(link_->up_stream());
  }
  if (shard_group_.size() == 1) {
    if (!unit.is_beside_device()) unit.full.copy_(shard);
    return;
  }
  unit.fetch.gather = shard_group_.all_gather(unit.full, shard, unit.layout.name);
  counters_.gathers++;
  counters_.gathered_elements += unit.layout.padded_numel;
  order_.push_back(index);
}

// The slab's memory may have served what the current stream was given before.
void Residency::upload(Unit& unit, const at::Tensor& into) {
  {
    const WaitPlace place("memory of a slab");
    link_->follow_current();
  }
  link_->copy_up(unit.fetch.shard[kParameterState], into);
  unit.fetch.upload = link_->ups();
}

// Those whose copies are over, or all. Of what was read from a disk memory is held meanwhile: two at most.
void Residency::let_go_of_shards(bool all) {
  constexpr int64_t kMostFromDisk = 2;
  const auto from_disk = [&] {
    return std::count_if(leaving_.begin(), leaving_.end(), [](const Leaving& one) { return one.is_on_disk; });
  };
  while (!leaving_.empty() && (all || leaving_.front().upload.is_over() || from_disk() > kMostFromDisk)) {
    const WaitPlace place("shard on its way");
    leaving_.front().upload.wait();
    leaving_.pop_front();
  }
}

void Residency::finish(int index) {
  Unit& unit = units_[index];
  if (unit.state == SlabState::Resident) return;
  if (unit.state == SlabState::Reading) gather_what_was_read();
  require(unit.state == SlabState::Fetching, ErrorKind::Internal, unit.layout.name,
          "waits for an all-gather that was not started");
  {
    const WaitPlace place("gather");
    unit.fetch.gather.wait_output();
    if (unit.is_on_disk() && !unit.is_beside_device()) unit.fetch.gather.wait();  // the shard's memory goes
  }
  unit.fetch.gather = {};
  if (unit.is_beside_device()) {
    const WaitPlace place("shard on the device");
    if (shard_group_.size() == 1) link_->lead_current(unit.fetch.upload);
    leaving_.push_back(
        {std::move(unit.fetch.shard), std::exchange(unit.fetch.upload, {}), unit.is_on_disk()});
  }
  unit.fetch.shard.end();
  unit.move_to(SlabState::Resident);
  unit.expose();
}

void Residency::open(int index) {
  finish(index);
  Unit& unit = units_[index];
  if (!unit.is_open) unit.expose();
}

void Residency::seal(Unit& unit) {
  if (seals_ && unit.is_open && unit.pins == 0 && !unit.keeps_writes()) unit.hide();
}

void Residency::seal_all() {
  for (Unit& unit : units_) seal(unit);
}

void Residency::drop(int index) {
  Unit& unit = units_[index];
  if (unit.pins > 0 || unit.state == SlabState::Absent || persistent_ || always_resident(unit)) return;
  finish(index);
  unit.hide();
  unit.move_to(SlabState::Absent);
  const auto bytes = static_cast<int64_t>(unit.full.nbytes());
  account(-bytes);
  // Kept for the next slab of this size: fresh memory costs a page fault every 4 KiB.
  if (counters_.resident_bytes + pool_bytes_ + bytes <= budget_bytes_) {
    pool_bytes_ += bytes;
    pool_.push_back(unit.full);
  }
  unit.full.reset();
}

void Residency::allocate(Unit& unit) {
  const int64_t bytes = unit.layout.slab_bytes();
  auto fits = std::find_if(pool_.begin(), pool_.end(), [&](const at::Tensor& memory) {
    return memory.dtype() == unit.options().dtype() && memory.numel() == unit.layout.padded_numel;
  });
  if (fits != pool_.end()) {
    unit.full = *fits;
    pool_.erase(fits);
    pool_bytes_ -= bytes;
  } else {
    while (!pool_.empty() && counters_.resident_bytes + pool_bytes_ + bytes > budget_bytes_) {
      pool_bytes_ -= static_cast<int64_t>(pool_.front().nbytes());
      pool_.erase(pool_.begin());
    }
    const MemoryPurposeScope purpose(MemoryPurpose::Parameters);
    unit.full = at::empty({unit.layout.padded_numel}, unit.options());
  }
  account(bytes);
}

void Residency::account(int64_t bytes) {
  counters_.resident_bytes += bytes;
  counters_.peak_resident_bytes = std::max(counters_.peak_resident_bytes, counters_.resident_bytes);
}

void Residency::finish_fetches() {
  const std::lock_guard lock(mutex_);
  gather_what_was_read();
  for (const Unit& unit : units_)
    if (unit.state == SlabState::Fetching) finish(unit.index);
  let_go_of_shards(/*all=*/true);
  seal_all();
}

void Residency::require_no_pins() const {
  for (const Unit& unit : units_)
    require(unit.pins == 0, ErrorKind::Usage, unit.layout.name, "its values change inside a GatherScope",
            "end the scope first");
}

void Residency::values_changed(bool frozen_too) {
  const std::lock_guard lock(mutex_);
  last_needed_ = -1;
  policy_.forget_values(frozen_too);
  for (Unit& unit : units_) {
    if (always_resident(unit)) {
      if (shard_group_.size() == 1) policy_.set_resident(unit.index, true);
    } else if (unit.layout.trainable || frozen_too) {
      if (unit.state == SlabState::Resident && persistent_)
        outdate(unit);
      else
        drop(unit.index);
    } else if (unit.state == SlabState::Resident) {
      policy_.set_resident(unit.index, true);
    }
  }
}

void Residency::outdate(Unit& unit) {
  unit.hide();
  unit.move_to(SlabState::Stale);
}

void Residency::pin(int index, bool modify) {
  const std::lock_guard lock(mutex_);
  Unit& unit = units_[index];
  unit.pins++;
  start(index);
  open(index);
  if (modify) let_go_of_shards(/*all=*/true);  // they will be written
  if (modify && unit.common.defined() && unit.full.is_same(unit.common)) copy_to_modify(unit);
  policy_.set_resident(index, true);
}

// Changes that all ranks make alike would hit common memory once for every rank.
void Residency::copy_to_modify(Unit& unit) {
  SlabWork own;
  const MemoryPurposeScope purpose(MemoryPurpose::Parameters);
  unit.full = at::empty({unit.layout.padded_numel}, unit.common.options());
  unit.hide();
  // Waited for to the end: when this rank writes its shard back, all have read it.
  const auto lease = unit.lend_shard(StateStore::Use::Read);
  const WaitPlace place("gather to modify");
  shard_group_.all_gather(unit.full, lease[kParameterState], unit.layout.name).wait();
  unit.expose();
}

void Residency::unpin(int index) {
  const std::lock_guard lock(mutex_);
  Unit& unit = units_[index];
  last_needed_ = -1;
  if (--unit.pins > 0) return;
  if (unit.common.defined() && !unit.full.is_same(unit.common)) {
    unit.full = unit.common;
    policy_.set_resident(index, false);
    return outdate(unit);
  }
  if (persistent_ || always_resident(unit)) return seal(unit);
  policy_.set_resident(index, false);
  drop(index);
}

std::vector<int> Residency::take_order() {
  const std::lock_guard lock(mutex_);
  return std::exchange(order_, {});
}

}  // namespace zero::detail
