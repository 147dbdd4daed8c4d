#include "sharding/step_ahead.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sharding/value_check.h"

namespace zero::detail {
namespace {

constexpr std::array kParameter{kParameterState};

bool same_rates(const StepInput& a, const StepInput& b) {
  const auto same_betas = [](const Betas& x, const Betas& y) {
    return x.beta1 == y.beta1 && x.beta2 == y.beta2;
  };
  return a.lr == b.lr && a.gradient_scale == b.gradient_scale && a.betas.has_value() == b.betas.has_value() &&
         (!a.betas || same_betas(*a.betas, *b.betas));
}

}  // namespace

StepAhead::StepAhead(std::vector<Unit>& units, StateStore& states, AheadUpdates& updates, int parameters)
    : units_(units),
      states_(states),
      updates_(updates),
      all_used_(static_cast<size_t>(parameters), 1),
      is_late_(units.size(), 0),
      was_late_(units.size(), 0) {
  int first = 0;
  for (const Unit& unit : units_) {
    first_parameter_.push_back(first);
    first += static_cast<int>(unit.layout.parameters.size());
  }
}

void StepAhead::begin(std::span<const int> order, const StepInput& input) {
  forget();
  input_ = input;
  input_.used = all_used_;
  was_late_ = std::exchange(is_late_, std::vector<char>(units_.size(), 0));
  updates_.announce(order);
  is_open_ = true;
}

void StepAhead::sum_is_final(int unit) {
  const auto at = static_cast<size_t>(unit);
  if (is_open_ && !is_late_[at] && !was_late_[at]) final_.push_back(unit);
}

void StepAhead::sum_changes(int unit) {
  is_late_[static_cast<size_t>(unit)] = 1;
  const auto is_of_unit = [unit](const StatePiece& piece) { return piece.unit == unit; };
  std::erase(final_, unit);
  std::erase_if(to_do_, is_of_unit);
  std::erase_if(updated_, [&](const Updated& one) { return is_of_unit(one.piece); });
}

bool StepAhead::is_used(int unit, std::span<const char> used) const {
  const auto at = static_cast<size_t>(unit);
  const auto own =
      used.subspan(static_cast<size_t>(first_parameter_[at]), units_[at].layout.parameters.size());
  return std::all_of(own.begin(), own.end(), [](char is) { return is != 0; });
}

// Where parameters can be written between backward and step, an update of older values must not count.
uint64_t StepAhead::check_of_parameter(const StatePiece& piece) const {
  if (!units_[static_cast<size_t>(piece.unit)].keeps_writes()) return 0;
  return check_of(states_.lend(piece, kParameter, StateStore::Use::Read)[kParameterState]);
}

void StepAhead::advance(std::span<const char> used) {
  while (is_open_) {
    if (to_do_.empty()) {
      if (final_.empty()) return;
      const int unit = final_.front();
      final_.pop_front();
      if (!is_used(unit, used)) continue;
      const std::vector<StatePiece> pieces = updates_.pieces(unit);
      // Out of turn, what was read ahead would have to be read again.
      if (pieces.empty() || !updates_.is_next(pieces.front())) continue;
      to_do_.assign(pieces.begin(), pieces.end());
    }
    const StatePiece piece = to_do_.front();
    if (!updates_.is_there(piece)) return;
    to_do_.pop_front();
    const uint64_t check = check_of_parameter(piece);
    updated_.push_back({.piece = piece, .parameter = updates_.update(piece, input_), .check = check});
  }
}

void StepAhead::forget() {
  is_open_ = false;
  final_.clear();
  to_do_.clear();
  updated_.clear();
  done_.clear();
  states_.forget_provisional();
}

std::span<const StatePiece> StepAhead::take_over(const StepInput& input) {
  std::vector<Updated> updated = std::exchange(updated_, {});
  const bool counts = is_open_ && same_rates(input, input_);
  for (const Updated& one : updated) {
    if (!counts || check_of_parameter(one.piece) != one.check) continue;
    updates_.accept(one.piece);
    const auto lease = states_.lend(one.piece, kParameter, StateStore::Use::Write);
    at::Tensor(lease[kParameterState]).copy_(one.parameter);
    done_.push_back(one.piece);
  }
  std::vector<StatePiece> done = std::move(done_);
  forget();
  done_ = std::move(done);
  taken_over_ += std::ssize(done_);
  return done_;
}

}  // namespace zero::detail
