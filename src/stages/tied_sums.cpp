#include "stages/tied_sums.h"

#include <algorithm>
#include <set>

namespace zero::detail {

using Kind = MessageName::Kind;

TiedSums::TiedSums(std::vector<TiedParameter> tied, std::vector<int> numbers, at::ScalarType sum_dtype,
                   Places& places)
    : tied_(std::move(tied)),
      numbers_(std::move(numbers)),
      sum_dtype_(sum_dtype),
      places_(places),
      caught_(tied_.size()),
      totals_(tied_.size()) {}

bool TiedSums::gives_early(int stage) const {
  return std::any_of(tied_.begin(), tied_.end(), [&](const TiedParameter& tied) {
    return std::find(tied.stages.begin() + 1, tied.stages.end(), stage) != tied.stages.end();
  });
}

bool TiedSums::take(int number, const at::Tensor& gradient) {
  const auto found = std::find(numbers_.begin(), numbers_.end(), number);
  if (found == numbers_.end()) return false;
  at::Tensor& caught = caught_[static_cast<size_t>(found - numbers_.begin())];
  const at::Tensor dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
  caught = caught.defined() ? caught.to(sum_dtype_) + dense : dense;
  return true;
}

void TiedSums::pass_on(int stage, int micro_batch) {
  for (size_t i = 0; i < tied_.size(); ++i) {
    const std::vector<int>& stages = tied_[i].stages;
    const auto here = std::find(stages.begin(), stages.end(), stage);
    if (here == stages.end()) continue;
    at::Tensor gradient = std::exchange(caught_[i], at::Tensor());
    if (here + 1 != stages.end()) {
      const at::Tensor later = places_.take({Kind::Tied, *(here + 1), micro_batch}, stage)[0].tensor;
      if (later.defined()) gradient = gradient.defined() ? later + gradient : later;
    }
    if (here != stages.begin())
      places_.give({{gradient}}, {Kind::Tied, stage, micro_batch}, *(here - 1));
    else if (gradient.defined())
      add_to_total(i, gradient);
  }
}

// As the engine's own sums: the first one is copied.
void TiedSums::add_to_total(size_t index, const at::Tensor& gradient) {
  at::Tensor& total = totals_[index];
  if (total.defined())
    total.add_(gradient.to(sum_dtype_));
  else
    total = gradient.to(sum_dtype_, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

std::vector<std::pair<int, at::Tensor>> TiedSums::totals() {
  std::vector<std::pair<int, at::Tensor>> sums;
  for (size_t i = 0; i < tied_.size(); ++i) {
    const std::vector<int>& stages = tied_[i].stages;
    const int first = stages.front();
    std::map<int, int> others;  // a stage of each other rank that holds it
    for (const int stage : stages)
      if (places_.shape().rank_of(stage) != places_.shape().rank_of(first))
        others.emplace(places_.shape().rank_of(stage), stage);
    if (places_.is_here(first)) {
      for (const auto& [rank, stage] : others) places_.give({{totals_[i]}}, {Kind::Totals, first, 0}, stage);
    } else if (const auto mine = others.find(places_.rank()); mine != others.end()) {
      totals_[i] = places_.take({Kind::Totals, first, 0}, mine->second)[0].tensor;
    }
    if (totals_[i].defined()) sums.emplace_back(numbers_[i], totals_[i]);
  }
  abandon();
  return sums;
}

void TiedSums::abandon() {
  std::fill(caught_.begin(), caught_.end(), at::Tensor());
  std::fill(totals_.begin(), totals_.end(), at::Tensor());
}

}  // namespace zero::detail
