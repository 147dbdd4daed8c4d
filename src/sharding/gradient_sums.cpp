#include "sharding/gradient_sums.h"

namespace zero::detail {

GradientSums::GradientSums(const std::vector<Unit>& units, int shard_rank, bool keeps_own,
                           at::ScalarType dtype)
    : states_(*units.front().states),
      options_(units.front().options().dtype(dtype)),
      keeps_own_(keeps_own),
      loans_(units.size()) {
  std::vector<int> trained;
  std::vector<int64_t> numels;
  for (const Unit& unit : units) {
    if (!unit.layout.trainable) continue;
    trained.push_back(unit.index);
    numels.push_back(keeps_own ? unit.layout.padded_numel : unit.layout.shard_numel);
  }
  states_.create_passing(keeps_own ? kOwnGradientState : kGradientState, trained, numels, options_,
                         units.front().layout.tiers.gradient);
  if (!keeps_own) return;
  for (const int unit : trained) {
    const int64_t numel = units[unit].layout.shard_numel;
    states_.create_view(unit, kGradientState, kOwnGradientState, shard_rank * numel, numel);
  }
}

std::shared_ptr<const GradientSums::Loan> GradientSums::borrow(int unit) {
  if (auto shared = loans_[unit].lock()) return shared;
  auto loan = std::make_shared<Loan>();
  loan->lease = states_.lend(unit, {kGradientState, kOwnGradientState}, StateStore::Use::Write);
  loan->sum = loan->lease[kGradientState];
  loan->own = loan->lease[kOwnGradientState];
  loans_[unit] = loan;
  return loan;
}

void GradientSums::discard() { states_.discard(keeps_own_ ? kOwnGradientState : kGradientState); }

}  // namespace zero::detail
