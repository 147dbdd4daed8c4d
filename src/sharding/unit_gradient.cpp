#include "sharding/unit_gradient.h"

#include <ATen/ops/empty.h>

#include <string>
#include <utility>

#include "compute/copy.h"
#include "compute/parallel.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

constexpr int kGradientStates = 4;
constexpr const char* kGradientStateNames[kGradientStates] = {"waiting", "complete", "packing", "sent"};
// Row: from; column: to. Any state may go back to Waiting: the next backward begins, or this one failed.
constexpr bool kLegalMoves[kGradientStates][kGradientStates] = {
    {true, true, true, true},    // Waiting: the end of backward sends units that are not complete
    {true, false, true, true},   // Complete
    {true, false, false, true},  // Packing
    {true, false, true, true},   // Sent: late gradients make a second round
};

// One flat, dense view or copy of a gradient as autograd gave it.
at::Tensor flat(const at::Tensor& gradient) {
  return (gradient.is_sparse() ? gradient.to_dense() : gradient).contiguous().view({-1});
}

// From here on a row has left the caches before another rank reads it.
constexpr int64_t kStreamedBytes = 256 << 10;

bool streams(const at::Tensor& into, const at::Tensor& values) {
  return values.is_cpu() && into.is_cpu() && values.scalar_type() == into.scalar_type() &&
         values.is_contiguous() && static_cast<int64_t>(values.nbytes()) >= kStreamedBytes;
}

}  // namespace

void put(const at::Tensor& into, const at::Tensor& values, bool replace) {
  if (replace)
    into.copy_(values);
  else
    into.add_(values.scalar_type() == into.scalar_type() ? values : values.to(into.scalar_type()));
}

void fill_row(const at::Tensor& into, const at::Tensor& values) {
  if (!values.defined()) {
    into.zero_();
  } else if (streams(into, values)) {
    const auto* from = static_cast<const char*>(values.const_data_ptr());
    auto* to = static_cast<char*>(into.mutable_data_ptr());
    const auto bytes = static_cast<int64_t>(into.element_size());
    parallel_over(values, kStreamedBytes / bytes, [&](int64_t begin, int64_t end) {
      stream_bytes(to + begin * bytes, from + begin * bytes, (end - begin) * bytes);
    });
  } else {
    into.copy_(values);
  }
}

UnitGradient::UnitGradient(const UnitLayout& layout, const at::TensorOptions& sums)
    : layout_(&layout), sums_(sums), pending_(layout.parameters.size()) {}

void UnitGradient::move_to(GradientState next) {
  const int from = static_cast<int>(state_), to = static_cast<int>(next);
  require(kLegalMoves[from][to], ErrorKind::Internal, layout_->name,
          std::string("its gradients cannot go from ") + kGradientStateNames[from] + " to " +
              kGradientStateNames[to]);
  state_ = next;
}

void UnitGradient::add(int place, const at::Tensor& gradient) {
  at::Tensor& pending = pending_[place];
  if (pending.defined()) {
    pending = pending.to(c10::typeMetaToScalarType(sums_.dtype())) + flat(gradient);
    return;
  }
  pending = flat(gradient);
  arrived_++;
}

void UnitGradient::release() {
  for (at::Tensor& pending : pending_) pending.reset();
  arrived_ = 0;
}

void UnitGradient::move_into(const at::Tensor& into, bool replace) {
  if (replace) into.zero_();
  for (size_t p = 0; p < pending_.size(); ++p) {
    const UnitParameter& parameter = layout_->parameters[p];
    if (pending_[p].defined() && parameter.numel > 0)
      put(into.narrow(0, parameter.offset, parameter.numel), pending_[p], replace);
  }
  release();
}

void UnitGradient::fold(const at::Tensor& own) {
  if (own_is_packed_) {
    own_sum_ = at::empty({layout_->padded_numel}, sums_);
    return move_into(own_sum_, /*replace=*/true);
  }
  own_sum_ = own;
  move_into(own_sum_, /*replace=*/!std::exchange(own_has_values_, true));
}

void UnitGradient::set_packed() {
  release();
  own_sum_.reset();
  own_is_packed_ = true;
}

void UnitGradient::clear() {
  release();
  state_ = GradientState::Waiting;
  has_sum_ = false;
  own_sum_.reset();
  own_has_values_ = own_is_packed_ = false;
}

void UnitGradient::pack(int64_t begin, const at::Tensor& row) const {
  in_segments(begin, row.numel(), [&](int64_t from, int64_t numel, const at::Tensor& values) {
    fill_row(row.narrow(0, from, numel), values);
  });
}

}  // namespace zero::detail
