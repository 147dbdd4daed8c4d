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
  Kept in_memory, on_host, on_disk, brief;
  for (const Unit& unit : units) {
    if (!unit.layout.trainable) continue;
    const Tier tier = unit.layout.tiers.gradient;
    const bool leaves = states_.host() != nullptr && tier != Tier::Device;
    Kept& place = leaves ? on_host : (tier == Tier::Disk ? on_disk : in_memory);
    for (Kept* const kept : {&place, is_brief(unit.index) ? &brief : nullptr}) {
      if (kept == nullptr) continue;
      kept->units.push_back(unit.index);
      kept->shards.push_back(unit.layout.shard_numel);
      kept->wholes.push_back(unit.layout.padded_numel);
    }
  }
  if (!on_host.units.empty())
    on_host_ =
        std::make_unique<DeviceSums>(states_, keeps_own ? kOwnGradientState : kGradientState, on_host.units,
                                     keeps_own ? on_host.wholes : on_host.shards, options_);
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
  std::vector<int> parts = in_memory.units;
  parts.insert(parts.end(), on_host.units.begin(), on_host.units.end());
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

std::shared_ptr<const GradientSums::Loan> GradientSums::borrow_from_host(int unit) {
  if (auto shared = loans_[unit].lock()) return shared;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  auto loan = std::make_unique<Loan>();
  const at::Tensor memory = on_host_->take(unit);
  loan->sum = memory;
  if (keeps_own_) {
    const auto shape = states_.lend(unit, {kGradientState}, StateStore::Use::Shape);
    const int64_t numel = shape[kGradientState].numel();
    loan->own = memory;
    loan->sum = memory.narrow(0, shard_rank_ * numel, numel);
  }
  std::shared_ptr<const Loan> shared(loan.release(), [this, unit](const Loan* ended) {
    put_back(unit, *ended);
    delete ended;
  });
  loans_[unit] = shared;
  return shared;
}

void GradientSums::put_back(int unit, const Loan& loan) noexcept {
  if (abandoned_) return;
  try {
    if (leaves_) leaves_(unit, loan.sum);
    on_host_->put(unit, keeps_own_ ? loan.own : loan.sum);
  } catch (...) {
    failure_ = std::current_exception();
  }
}

std::shared_ptr<const GradientSums::Loan> GradientSums::borrow(int unit) {
  if (is_on_host(unit)) return borrow_from_host(unit);
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
  states_.discard(kGradientState);
  if (keeps_own_) states_.discard(kOwnGradientState);
  if (on_host_) on_host_->discard();
  abandoned_ = false;
}

}  // namespace zero::detail
