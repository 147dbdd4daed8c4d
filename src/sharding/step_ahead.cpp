#include "sharding/step_ahead.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sharding/value_check.h"
#include "zero/error.h"

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

StepAhead::StepAhead(std::vector<Unit>& units, StateStore& states, AheadUpdates& updates,
                     Gradients& gradients, int parameters, bool in_place)
    : units_(units),
      states_(states),
      updates_(updates),
      gradients_(gradients),
      in_place_(in_place),
      all_used_(static_cast<size_t>(parameters), 1),
      is_late_(units.size(), 0),
      was_late_(units.size(), 0),
      said_final_(units.size(), 0),
      begun_(units.size(), 0) {
  int first = 0;
  for (const Unit& unit : units_) {
    first_parameter_.push_back(first);
    first += static_cast<int>(unit.layout.parameters.size());
  }
}

void StepAhead::begin(std::span<const int> order, const StepInput& input) {
  require(forget(), ErrorKind::Internal, "StepAhead", "a backward begins after another that was in place");
  input_ = input;
  input_.used = all_used_;
  was_late_ = std::exchange(is_late_, std::vector<char>(units_.size(), 0));
  updates_.announce(order);
  is_open_ = true;
}

void StepAhead::sum_is_final(int unit) {
  const auto at = static_cast<size_t>(unit);
  if (!is_open_ || is_late_[at] || was_late_[at]) return;
  final_.push_back(unit);
  said_final_[at] = 1;
}

// Whether it has been updated by now is the disk's affair: what is said must not depend on that.
void StepAhead::sum_changes(int unit) {
  const auto at = static_cast<size_t>(unit);
  require(!said_final_[at] || !(in_place_ || gradients_.uses_up(unit)), ErrorKind::Usage,
          units_[at].layout.name, "more of its gradient comes after it was updated with what had come",
          "set offload.step_in_backward to off: this model gives gradients in parts");
  is_late_[at] = 1;
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

// Its shard is lent to a gather.
bool StepAhead::is_on_its_way(int unit) const {
  const Unit& one = units_[static_cast<size_t>(unit)];
  return one.is_on_disk() && (one.state == SlabState::Reading || one.state == SlabState::Fetching);
}

// Puts the pieces of the first unit that waits, and can be updated now, on the list.
bool StepAhead::takes_next_unit(std::span<const char> used) {
  while (to_do_.empty() && !final_.empty()) {
    const int unit = final_.front();
    if (is_on_its_way(unit)) return false;
    final_.pop_front();
    if (!is_used(unit, used)) continue;
    const std::vector<StatePiece> pieces = updates_.pieces(unit);
    if (pieces.empty()) continue;
    const bool uses_up = gradients_.uses_up(unit);
    // Out of turn, what was read ahead would have to be read again. Memory is worth that.
    if (!(uses_up ? updates_.skip_to(pieces.front()) : updates_.is_next(pieces.front()))) continue;
    to_do_.assign(pieces.begin(), pieces.end());
    if (!uses_up) continue;
    begun_[static_cast<size_t>(unit)] = 1;
    if (sees_) sees_(unit, gradients_.kept_sum(unit));
  }
  return !to_do_.empty();
}

void StepAhead::update(const StatePiece& piece) {
  const at::Tensor sum =
      begun_[static_cast<size_t>(piece.unit)] ? gradients_.kept_sum(piece.unit) : at::Tensor();
  const at::Tensor part = sum.defined() ? sum.narrow(0, piece.begin, piece.end - piece.begin) : sum;
  const uint64_t check = check_of_parameter(piece);
  is_written_ = is_written_ || in_place_;
  updated_.push_back(
      {.piece = piece, .parameter = updates_.update(piece, input_, part, in_place_), .check = check});
}

void StepAhead::go(std::span<const char> used, bool is_over) {
  while (is_open_ && takes_next_unit(used)) {
    const StatePiece piece = to_do_.front();
    const bool uses_up = begun_[static_cast<size_t>(piece.unit)] != 0;
    const bool waits = uses_up && (is_over || !final_.empty());
    if (!waits && !updates_.is_there(piece)) return;
    to_do_.pop_front();
    update(piece);
    if (uses_up && to_do_.empty()) gradients_.use_up(piece.unit);
  }
}

void StepAhead::advance(std::span<const char> used) { go(used, /*is_over=*/false); }

void StepAhead::finish(std::span<const char> used) {
  go(used, /*is_over=*/true);
  gradients_.let_go_of_sums();
}

bool StepAhead::forget() {
  const bool is_whole = !is_written_;
  is_open_ = is_written_ = false;
  final_.clear();
  to_do_.clear();
  updated_.clear();
  done_.clear();
  std::fill(begun_.begin(), begun_.end(), 0);
  std::fill(said_final_.begin(), said_final_.end(), 0);
  states_.forget_provisional();
  return is_whole;
}

std::span<const StatePiece> StepAhead::take_over(const StepInput& input) {
  std::vector<Updated> updated = std::exchange(updated_, {});
  const bool counts = is_open_ && same_rates(input, input_);
  for (const Updated& one : updated) {
    const bool binds = in_place_ || has_used_up(one.piece.unit);
    const bool is_valid = counts && check_of_parameter(one.piece) == one.check;
    require(
        is_valid || !binds, ErrorKind::Usage, units_[static_cast<size_t>(one.piece.unit)].layout.name,
        "it was updated in backward, and after that the rate, the losses' weight or its values were changed",
        "change them after step(), or set offload.step_in_backward to off");
    if (!is_valid) continue;
    if (!in_place_) updates_.accept(one.piece);
    if (one.parameter.defined()) {
      const auto lease = states_.lend(one.piece, kParameter, StateStore::Use::Write);
      at::Tensor(lease[kParameterState]).copy_(one.parameter);
    }
    done_.push_back(one.piece);
  }
  std::vector<StatePiece> done = std::move(done_);
  forget();
  done_ = std::move(done);
  taken_over_ += std::ssize(done_);
  return done_;
}

}  // namespace zero::detail
