#include "sharding/gradient_sums.h"

#include <algorithm>
#include <array>
#include <utility>

#include "zero/error.h"

namespace zero::detail {
namespace {

constexpr std::array kBoth{kGradientState, kOwnGradientState};
constexpr std::array kSum{kGradientState};
constexpr std::array kOwn{kOwnGradientState};

}  // namespace

GradientSums::GradientSums(const std::vector<Unit>& units, int shard_rank, bool keeps_own,
                           at::ScalarType dtype, std::vector<End> ends)
    : states_(*units.front().states),
      options_(units.front().options().dtype(dtype)),
      keeps_own_(keeps_own),
      shard_rank_(shard_rank),
      ends_(std::move(ends)),
      is_used_up_(units.size(), 0),
      kept_(units.size()),
      loans_(units.size()),
      own_loans_(units.size()) {
  struct Kept {
    std::vector<int> units;
    std::vector<int64_t> shards, wholes;
  };
  Kept in_memory, on_disk, brief;
  std::vector<DeviceSums::Place> leaving, leaving_apart;
  std::vector<int> parts;  // units whose sum is a part of their own sum
  for (const Unit& unit : units) {
    if (!unit.layout.trainable) continue;
    const Tier tier = unit.layout.tiers.gradient;
    const int64_t shard = unit.layout.shard_numel, whole = unit.layout.padded_numel;
    if (states_.host() != nullptr && tier != Tier::Device) {
      leaving.push_back({unit.index, keeps_own ? whole : shard, tier});
      if (keeps_own && tier == Tier::Disk)
        leaving_apart.push_back({unit.index, shard, tier});
      else if (keeps_own)
        parts.push_back(unit.index);
      continue;
    }
    Kept& place = tier == Tier::Disk ? on_disk : in_memory;
    for (Kept* const kept : {&place, is_brief(unit.index) ? &brief : nullptr}) {
      if (kept == nullptr) continue;
      kept->units.push_back(unit.index);
      kept->shards.push_back(shard);
      kept->wholes.push_back(whole);
    }
  }
  const auto leave = [&](std::string_view kind, const std::vector<DeviceSums::Place>& places) {
    return places.empty() ? nullptr : std::make_unique<DeviceSums>(states_, kind, places, options_);
  };
  leaving_ = leave(keeps_own ? kOwnGradientState : kGradientState, leaving);
  leaving_apart_ = leave(kGradientState, leaving_apart);
  states_.create_brief(kGradientState, brief.units, brief.shards, options_);
  for (size_t i = 0; i < on_disk.units.size(); ++i)
    if (!is_brief(on_disk.units[i]))
      states_.create_passing(kGradientState, {&on_disk.units[i], 1}, {on_disk.shards[i]}, options_,
                             Tier::Disk);
  if (!keeps_own) {
    states_.create_passing(kGradientState, in_memory.units, in_memory.shards, options_);
    return;
  }
  states_.create_passing(kOwnGradientState, on_disk.units, on_disk.wholes, options_, Tier::Disk);
  states_.create_passing(kOwnGradientState, in_memory.units, in_memory.wholes, options_);
  parts.insert(parts.end(), in_memory.units.begin(), in_memory.units.end());
  for (const int unit : parts) {
    const int64_t numel = units[unit].layout.shard_numel;
    states_.create_view(unit, kGradientState, kOwnGradientState, shard_rank * numel, numel);
  }
}

std::shared_ptr<const GradientSums::Loan> GradientSums::lend(int unit, std::weak_ptr<const Loan>& known,
                                                             std::span<const std::string_view> kinds) {
  if (auto shared = known.lock()) return shared;
  auto loan = std::make_shared<Loan>();
  loan->lease = states_.lend(unit, kinds, StateStore::Use::Write);
  loan->sum = loan->lease[kGradientState];
  loan->own = loan->lease[kOwnGradientState];
  known = loan;
  return loan;
}

std::shared_ptr<const GradientSums::Loan> GradientSums::lend_on_device(int unit,
                                                                       std::weak_ptr<const Loan>& known,
                                                                       DeviceSums& from, Part part) {
  if (auto shared = known.lock()) return shared;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  auto loan = std::make_unique<Loan>();
  const at::Tensor memory = from.take(unit);
  if (part != Part::Sum) loan->own = memory;
  if (part == Part::Sum) loan->sum = memory;
  if (part == Part::Both) {
    const auto shape = states_.lend(unit, {kGradientState}, StateStore::Use::Shape);
    const int64_t numel = shape[kGradientState].numel();
    loan->sum = memory.narrow(0, shard_rank_ * numel, numel);
  }
  std::shared_ptr<const Loan> shared(loan.release(), [this, unit, &from, part](const Loan* ended) {
    put_back(unit, *ended, from, part);
    delete ended;
  });
  known = shared;
  return shared;
}

void GradientSums::put_back(int unit, const Loan& loan, DeviceSums& into, Part part) noexcept {
  if (abandoned_) return;
  try {
    if (leaves_ && part != Part::Own) leaves_(unit, loan.sum);
    into.put(unit, part == Part::Sum ? loan.sum : loan.own);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

std::shared_ptr<const GradientSums::Loan> GradientSums::borrow(int unit) {
  if (has(leaving_apart_, unit)) return lend_on_device(unit, loans_[unit], *leaving_apart_, Part::Sum);
  if (has(leaving_, unit))
    return lend_on_device(unit, loans_[unit], *leaving_, keeps_own_ ? Part::Both : Part::Sum);
  if (ends_[unit] != End::Waits) return lend_sum(unit);
  if (lie_apart(unit)) return lend(unit, loans_[unit], kSum);
  return lend(unit, loans_[unit], kBoth);
}

// Of one that is used up: when nobody has it any more, its memory goes.
std::shared_ptr<const GradientSums::Loan> GradientSums::lend_sum(int unit) {
  if (auto shared = loans_[unit].lock()) return shared;
  require(!is_used_up_[unit], ErrorKind::Internal, "gradient", "it has been used up before all of it came");
  auto loan = std::make_unique<Loan>();
  loan->lease = states_.lend(unit, kSum, StateStore::Use::Write);
  loan->sum = loan->lease[kGradientState];
  std::shared_ptr<const Loan> shared(loan.release(), [this, unit](const Loan* ended) {
    const std::unique_ptr<Loan> own(const_cast<Loan*>(ended));
    end_loan(unit, *own);
  });
  loans_[unit] = shared;
  if (keeps_used_up_) kept_[unit] = shared;
  return shared;
}

void GradientSums::end_loan(int unit, Loan& loan) noexcept {
  if (!is_used_up_[unit]) return;
  loan.sum.reset();
  loan.lease.forget();
  states_.use_up(unit, kGradientState);
}

at::Tensor GradientSums::kept(int unit) const {
  const auto& loan = kept_[static_cast<size_t>(unit)];
  return loan ? loan->sum : at::Tensor();
}

void GradientSums::use_up(int unit) {
  is_used_up_[static_cast<size_t>(unit)] = 1;
  kept_[static_cast<size_t>(unit)].reset();
}

void GradientSums::let_go() {
  keeps_used_up_ = false;
  for (auto& loan : kept_) loan.reset();
}

std::shared_ptr<const GradientSums::Loan> GradientSums::borrow_own(int unit) {
  if (has(leaving_apart_, unit)) return lend_on_device(unit, own_loans_[unit], *leaving_, Part::Own);
  if (has(leaving_, unit)) return borrow(unit);
  if (lie_apart(unit)) return lend(unit, own_loans_[unit], kOwn);
  return borrow(unit);
}

void GradientSums::discard() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  // What is kept still has no values any more: nothing of it need go to a disk.
  for (size_t unit = 0; unit < kept_.size(); ++unit)
    if (kept_[unit]) use_up(static_cast<int>(unit));
  let_go();
  std::fill(is_used_up_.begin(), is_used_up_.end(), 0);
  if (leaving_) leaving_->discard();
  if (leaving_apart_) leaving_apart_->discard();
  states_.discard(kGradientState);
  if (keeps_own_) states_.discard(kOwnGradientState);
  abandoned_ = false;
}

}  // namespace zero::detail
