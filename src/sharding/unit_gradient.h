#pragma once
// One unit's gradients on this rank, from the tensors that autograd makes to the rows of a bucket.

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "zero/plan.h"

namespace zero::detail {

/// Where a unit's gradients of the current backward are. Legal transitions are in unit_gradient.cpp.
enum class GradientState {
  Waiting,   // some parameters have none yet
  Complete,  // all have one; the unit waits for its turn in the common order
  Packing,   // sent: pieces of it are in the bucket that is being filled
  Sent,      // nothing of it is left to pack; what comes now is sent again at the end
};

class UnitGradient {
 public:
  /// Of a frozen unit: there are none.
  UnitGradient() = default;
  /// `layout` outlives this. `sums`: dtype and device of sums.
  UnitGradient(const UnitLayout& layout, const at::TensorOptions& sums);

  GradientState state() const { return state_; }
  /// Throws Internal for an illegal transition.
  void move_to(GradientState next);

  /// A parameter's gradient, in its own shape. A second one is added to the first in the sum's dtype. The
  /// tensor is kept until release().
  void add(int place, const at::Tensor& gradient);
  bool has_all() const { return arrived_ == static_cast<int>(pending_.size()); }
  bool has_some() const { return arrived_ > 0; }
  /// Nothing of what came is kept; none of it has to be sent.
  void release();
  /// What came is no longer counted, but kept until release().
  void set_sent() { arrived_ = 0; }

  /// True once since clear(): a first contribution replaces what the sum's memory holds.
  bool take_first() { return !std::exchange(has_sum_, true); }
  /// Writes or adds what came into `into`, which is laid out like the unit, and lets go of it.
  void move_into(const at::Tensor& into, bool replace);

  /// This rank's own sum over micro-batches: moves what came into it. `own` [padded_numel] is its memory, the
  /// same one every time, until it has been packed; what comes later gets memory for itself.
  void fold(const at::Tensor& own);
  bool has_own_sum() const { return own_sum_.defined(); }
  /// Lets go of the own sum: nothing is packed before the next fold().
  void let_go_of_own_sum() { own_sum_.reset(); }
  /// All of this round has been packed.
  void set_packed();
  /// Forgets everything: the next contributions are the first ones.
  void clear();

  /// What is known of elements [begin, begin + numel) of the unit, without gaps and in order: use(from,
  /// numel, values), where `from` counts from `begin` and `values` [numel] is undefined for zeros.
  template <class Use>
  void in_segments(int64_t begin, int64_t numel, Use use) const;
  /// Fills `row` [numel] with the elements from `begin` on: gradients where there are some, zeros elsewhere.
  void pack(int64_t begin, const at::Tensor& row) const;

 private:
  const UnitLayout* layout_ = nullptr;
  at::TensorOptions sums_;
  at::Tensor own_sum_;  // [padded_numel]; from fold() until it is packed or kept for later
  bool own_has_values_ = false, own_is_packed_ = false;
  bool has_sum_ = false;
  GradientState state_ = GradientState::Waiting;
  std::vector<at::Tensor> pending_;  // per parameter: flat, or undefined
  int arrived_ = 0;                  // of them since the unit was sent
};

/// A row of a bucket from values of any dtype; undefined values are zeros.
void fill_row(const at::Tensor& into, const at::Tensor& values);

/// Writes or adds values of any dtype.
void put(const at::Tensor& into, const at::Tensor& values, bool replace);

template <class Use>
void UnitGradient::in_segments(int64_t begin, int64_t numel, Use use) const {
  if (own_sum_.defined()) return use(0, numel, own_sum_.narrow(0, begin, numel));
  const int64_t end = begin + numel;
  int64_t done = begin;
  for (size_t p = 0; p < pending_.size(); ++p) {
    const UnitParameter& parameter = layout_->parameters[p];
    const int64_t from = std::max(parameter.offset, begin), to = std::min(parameter.end(), end);
    if (from >= to || !pending_[p].defined()) continue;
    if (from > done) use(done - begin, from - done, at::Tensor());
    use(from - begin, to - from, pending_[p].narrow(0, from - parameter.offset, to - from));
    done = to;
  }
  if (done < end) use(done - begin, end - done, at::Tensor());
}

}  // namespace zero::detail
