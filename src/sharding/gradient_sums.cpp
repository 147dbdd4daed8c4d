#include "sharding/gradient_sums.h"

#include <utility>

namespace zero::detail {

GradientSums::GradientSums(const std::vector<Unit>& units, int shard_rank, bool keeps_own,
                           at::ScalarType dtype)
    : states_(*units.front().states),
      options_(units.front().options().dtype(dtype)),
      keeps_own_(keeps_own),
      shard_rank_(shard_rank),
      loans_(units.size()) {
  std::vector<int> trained, kept, away;
  std::vector<int64_t> numels, away_numels;
  for (const Unit& unit : units) {
    if (!unit.layout.trainable) continue;
    const bool leaves = states_.host() != nullptr && unit.layout.tiers.gradient != Tier::Device;
    trained.push_back(unit.index);
    (leaves ? away : kept).push_back(unit.index);
    (leaves ? away_numels : numels).push_back(keeps_own ? unit.layout.padded_numel : unit.layout.shard_numel);
  }
  const std::string_view kind = keeps_own ? kOwnGradientState : kGradientState;
  states_.create_passing(kind, kept, numels, options_);
  if (!away.empty()) on_host_ = std::make_unique<DeviceSums>(states_, kind, away, away_numels, options_);
  if (!keeps_own) return;
  for (const int unit : trained) {
    const int64_t numel = units[unit].layout.shard_numel;
    states_.create_view(unit, kGradientState, kOwnGradientState, shard_rank * numel, numel);
  }
}

std::shared_ptr<const GradientSums::Loan> GradientSums::borrow(int unit) {
  if (auto shared = loans_[unit].lock()) return shared;
  if (is_on_host(unit)) return borrow_from_host(unit);
  auto loan = std::make_shared<Loan>();
  loan->lease = states_.lend(unit, {kGradientState, kOwnGradientState}, StateStore::Use::Write);
  loan->sum = loan->lease[kGradientState];
  loan->own = loan->lease[kOwnGradientState];
  loans_[unit] = loan;
  return loan;
}

std::shared_ptr<const GradientSums::Loan> GradientSums::borrow_from_host(int unit) {
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

void GradientSums::discard() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  states_.discard(keeps_own_ ? kOwnGradientState : kGradientState);
  if (on_host_) on_host_->discard();
  abandoned_ = false;
}

}  // namespace zero::detail
