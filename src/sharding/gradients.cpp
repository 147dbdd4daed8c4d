#include "sharding/gradients.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "compute/wait_place.h"
#include "zero/torch_dtype.h"

namespace zero::detail {

Gradients::Gradients(std::vector<Unit>& units, Group shard_group, Group replica_group, Group all,
                     const Plan& plan)
    : units_(units),
      shard_group_(std::move(shard_group)),
      replica_group_(std::move(replica_group)),
      all_(std::move(all)),
      plan_(plan),
      gradients_(units.size()),
      buckets_(units, gradients_, sums_, shard_group_, replica_group_, plan),
      replicas_(replica_group_, scalar_type_of(plan.communication_dtype), plan.reduce_bucket_numel) {
  for (int i = 0; i < std::ssize(units_); ++i) {
    const UnitLayout& layout = units_[i].layout;
    for (int p = 0; p < std::ssize(layout.parameters); ++p) places_.emplace_back(i, p);
    if (layout.trainable) order_.push_back(i);
  }
  std::reverse(order_.begin(), order_.end());
  used_.assign(places_.size(), 0);
  make_sums();
  buckets_.when_summed([this](int unit) { say_final(unit); });
  clear();
}

void Gradients::make_sums() {
  if (order_.empty()) return;
  std::vector<GradientSums::End> ends;
  for (const Unit& unit : units_) {
    const bool is_used_up = unit.layout.trainable && plan_.uses_up_gradient(unit.layout);
    const bool lies_nowhere = is_used_up && plan_.keeps_gradient_off_disk(unit.layout);
    ends.push_back(lies_nowhere ? GradientSums::End::UsedUpHere
                                : (is_used_up ? GradientSums::End::UsedUp : GradientSums::End::Waits));
  }
  sums_.emplace(units_, shard_group_.rank(), keeps_own_sums() && buckets_.group().size() > 1,
                scalar_type_of(plan_.accumulation_dtype), std::move(ends));
  for (const int unit : order_) gradient(unit) = UnitGradient(units_[unit].layout, sums_->options());
}

void Gradients::begin_backward(bool boundary, GradientObserver* observer) {
  boundary_ = boundary;
  observer_ = boundary ? observer : nullptr;
  if (observer_ != nullptr && sums_) sums_->keep_used_up();
  next_ = 0;
  for (const int unit : order_) gradient(unit).move_to(GradientState::Waiting);
}

void Gradients::on_gradient(int parameter, const at::Tensor& value) {
  const auto [unit, place] = places_[parameter];
  UnitGradient& target = gradient(unit);
  used_[parameter] = 1;
  // Part of it may have gone already: what comes now is a second contribution.
  const bool is_late = target.state() == GradientState::Packing || target.state() == GradientState::Sent;
  if (is_late && observer_ != nullptr) observer_->sum_changes(unit);
  if (target.state() == GradientState::Packing) buckets_.flush();
  target.add(place, value);
  if (target.state() != GradientState::Waiting || !target.has_all()) return;
  target.move_to(GradientState::Complete);
  if (!order_agreed_) complete_order_.push_back(unit);
  send_complete();
}

// Sends, in the common order, the units whose gradients are complete.
void Gradients::send_complete() {
  while (next_ < order_.size() && gradient(order_[next_]).state() == GradientState::Complete)
    send(order_[next_++]);
}

void Gradients::send(int unit) {
  const bool late = gradient(unit).state() == GradientState::Sent;
  if (buckets_.group().size() == 1) {
    add_up_here(unit, late);
    return gradient(unit).move_to(GradientState::Sent);
  }
  std::shared_ptr<const GradientSums::Loan> loan;
  if (keeps_own_sums()) {
    loan = sums_->borrow_own(unit);
    gradient(unit).fold(loan->own);
  }
  if (sends_now()) return buckets_.add(unit, gradient(unit).take_first(), loan);
  gradient(unit).let_go_of_own_sum();
  gradient(unit).move_to(GradientState::Sent);
}

// One rank owns the whole: no buckets, and only replicas to talk to.
void Gradients::add_up_here(int unit, bool late) {
  const auto loan = sums_->borrow(unit);
  if (!(late && boundary_)) {
    gradient(unit).move_into(loan->sum, gradient(unit).take_first());
    if (!boundary_) return;
    predivide(loan->sum);
    replicas_.start(loan->sum, name(unit), loan);
    return say_final(unit);
  }
  // The sum is on its way already: what came late is summed by itself.
  const at::Tensor rest = at::empty_like(loan->sum);
  gradient(unit).move_into(rest, true);
  predivide(rest);
  replicas_.start(rest, name(unit), nullptr);
  replicas_.finish();
  loan->sum.add_(rest);
}

// Sums of shards travel between replicas when the backward is over.
void Gradients::say_final(int unit) {
  const bool replicas_add = replica_group_.size() > 1 && !buckets_.sums_whole();
  if (observer_ != nullptr && !replicas_add) observer_->sum_is_final(unit);
}

void Gradients::predivide(const at::Tensor& sum) const {
  if (plan_.gradient_predivide_factor != 1) sum.div_(plan_.gradient_predivide_factor);
}

void Gradients::end_backward() {
  // Units that some rank did not complete (parameters without gradient) are sent all the same: the others
  // wait for them.
  while (next_ < order_.size()) send(order_[next_++]);
  // Gradients that came after their unit had been sent go in a second round.
  for (const int unit : order_)
    if (gradient(unit).has_some()) send(unit);
  buckets_.finish();
  if (boundary_) {
    if (shard_group_.size() > 1 && replica_group_.size() > 1)
      for (const int unit : order_) {
        const auto loan = sums_->borrow(unit);
        replicas_.start(loan->sum, name(unit), loan);
      }
    replicas_.finish();
  }
  if (!order_agreed_) agree_on_order();
  observer_ = nullptr;
}

// After the first backward all ranks take over the order in which rank 0's units became complete: it wastes
// no waiting.
void Gradients::agree_on_order() {
  order_agreed_ = true;
  if (all_.size() == 1 || order_.empty()) return;
  std::vector<int64_t> complete(complete_order_.begin(), complete_order_.end());
  for (const int unit : order_)
    if (std::find(complete.begin(), complete.end(), unit) == complete.end()) complete.push_back(unit);
  at::Tensor shared = at::tensor(complete, at::kLong).to(units_.front().options().device());
  const WaitPlace place("order of gradients");
  all_.broadcast(shared, 0, "order of gradients").wait();
  shared = shared.cpu();
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<int>(shared.data_ptr<int64_t>()[i]);
}

void Gradients::tell_of_leaving(GradientSums::Leaves leaves) {
  if (!sums_) return;
  sums_->tell_of_leaving([this, told = std::move(leaves)](int unit, const at::Tensor& sum) {
    if (boundary_) told(unit, sum);
  });
}

void Gradients::abandon() {
  if (sums_) sums_->abandon();
  observer_ = nullptr;
  buckets_.abandon();
  replicas_.abandon();
  clear();
}

void Gradients::clear() {
  for (const int unit : order_) gradient(unit).clear();
  if (sums_) sums_->discard();
  std::fill(used_.begin(), used_.end(), 0);
}

GradientCounters Gradients::counters() const {
  const BucketCounters& sent = buckets_.counters();
  return {.buckets = sent.buckets,
          .reduce_scatter_elements = sent.reduce_scatter_elements,
          .all_reduce_elements = sent.all_reduce_elements + replicas_.elements()};
}

}  // namespace zero::detail
