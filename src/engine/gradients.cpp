#include "engine/gradients.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "compute/copy.h"
#include "compute/parallel.h"
#include "zero/error.h"

namespace zero::detail {
namespace {

// With more ranks it is faster to add up parts and gather them.
constexpr int kMostReadersOfAll = 4;

// One flat, dense view or copy of a gradient as autograd gave it.
at::Tensor flat(const at::Tensor& gradient) {
  return (gradient.is_sparse() ? gradient.to_dense() : gradient).contiguous().view({-1});
}

void put(const at::Tensor& into, const at::Tensor& values, bool replace) {
  if (replace)
    into.copy_(values);
  else
    into.add_(values.scalar_type() == into.scalar_type() ? values : values.to(into.scalar_type()));
}

// From here on a row has left the caches before another rank reads it.
constexpr int64_t kStreamedBytes = 256 << 10;

bool streams(const at::Tensor& into, const at::Tensor& values) {
  return values.is_cpu() && into.is_cpu() && values.scalar_type() == into.scalar_type() &&
         values.is_contiguous() && values.nbytes() >= static_cast<size_t>(kStreamedBytes);
}

// A dense row; undefined values are zeros.
void fill_row(const at::Tensor& into, const at::Tensor& values) {
  if (!values.defined()) {
    into.zero_();
  } else if (streams(into, values)) {
    const auto* from = static_cast<const char*>(values.const_data_ptr());
    auto* to = static_cast<char*>(into.mutable_data_ptr());
    const auto bytes = static_cast<int64_t>(into.element_size());
    parallel_over(values, kStreamedBytes / bytes, [&](int64_t begin, int64_t end) {
      stream_bytes(to + begin * bytes, from + begin * bytes, static_cast<size_t>((end - begin) * bytes));
    });
  } else {
    into.copy_(values);
  }
}

}  // namespace

Gradients::Gradients(std::vector<Unit>& units, Group shard_group, Group replica_group, Group all,
                     GradientOptions options)
    : units_(units),
      shard_group_(std::move(shard_group)),
      replica_group_(std::move(replica_group)),
      all_(std::move(all)),
      options_(options),
      replicas_(replica_group_, options.communication_dtype, options.bucket_numel) {
  sums_whole_ = shard_group_.size() == 1 && replica_group_.shares_memory() &&
                replica_group_.size() <= kMostReadersOfAll && options_.accumulation_dtype == at::kFloat;
  reads_own_ = !sums_whole_ && options_.accumulation_dtype == at::kFloat && options_.predivide == 1;
  gradients_.resize(units_.size());
  for (size_t i = 0; i < units_.size(); ++i) {
    const UnitLayout& layout = units_[i].layout;
    for (size_t p = 0; p < layout.parameters.size(); ++p)
      places_.emplace_back(static_cast<int>(i), static_cast<int>(p));
    if (!layout.trainable) continue;
    gradients_[i].pending.resize(layout.parameters.size());
    bucket_piece_numel_ =
        std::max(bucket_piece_numel_, bucket_piece_numel(layout, shard_group_.size(), options_.bucket_numel));
    order_.push_back(static_cast<int>(i));
  }
  std::reverse(order_.begin(), order_.end());
  used_.assign(places_.size(), 0);
  make_memory();
  clear();
}

void Gradients::make_memory() {
  if (order_.empty()) return;
  const bool keeps_whole =
      options_.placement == Placement::Partial && options_.accumulates && bucket_group().size() > 1;
  std::vector<int64_t> numels(units_.size());
  for (const int unit : order_) {
    const UnitLayout& layout = units_[static_cast<size_t>(unit)].layout;
    numels[static_cast<size_t>(unit)] = keeps_whole ? layout.padded_numel : layout.shard_numel;
  }
  memory_.emplace(numels, units_.front().shard.options().dtype(options_.accumulation_dtype));
  for (const int unit : order_) {
    UnitGradient& gradient = gradients_[static_cast<size_t>(unit)];
    const int64_t shard_numel = units_[static_cast<size_t>(unit)].layout.shard_numel;
    gradient.shard = memory_->tensor(static_cast<size_t>(unit));
    if (!keeps_whole) continue;
    // The sum of this rank's shard takes the place of its own contribution, which has been packed by then.
    gradient.whole = gradient.shard;
    gradient.shard = gradient.whole.narrow(0, shard_group_.rank() * shard_numel, shard_numel);
  }
}

void Gradients::begin_backward(bool boundary) {
  boundary_ = boundary;
  next_ = 0;
  for (UnitGradient& gradient : gradients_) gradient.sent = gradient.queued = false;
}

void Gradients::on_gradient(int parameter, const at::Tensor& gradient) {
  const auto [unit, place] = places_[static_cast<size_t>(parameter)];
  UnitGradient& target = gradients_[static_cast<size_t>(unit)];
  at::Tensor& pending = target.pending[static_cast<size_t>(place)];
  used_[static_cast<size_t>(parameter)] = 1;
  if (target.unpacked) flush();  // part of it may have gone already: what comes now is a second contribution
  if (pending.defined()) {
    pending = pending.to(options_.accumulation_dtype) + flat(gradient);
    return;
  }
  pending = flat(gradient);
  target.arrived++;
  if (target.queued || target.arrived < static_cast<int>(target.pending.size())) return;
  target.queued = true;
  if (!order_agreed_) ready_order_.push_back(unit);
  send_ready();
}

// Sends, in the common order, the units whose gradients are complete.
void Gradients::send_ready() {
  while (next_ < order_.size() && gradients_[static_cast<size_t>(order_[next_])].queued)
    send(order_[next_++]);
}

void Gradients::send(int index) {
  UnitGradient& gradient = gradients_[static_cast<size_t>(index)];
  const bool late = std::exchange(gradient.sent, true);
  if (bucket_group().size() == 1) return send_whole(index, late);
  if (options_.placement == Placement::Partial && options_.accumulates) fold_into_local(index);
  if (!sends_now()) return;
  add_pieces(index, gradient.rounds++ == 0);
}

// One rank owns the whole: no staging, and only replicas to talk to.
void Gradients::send_whole(int index, bool late) {
  UnitGradient& gradient = gradients_[static_cast<size_t>(index)];
  hold(index);
  const std::string& name = units_[static_cast<size_t>(index)].layout.name;
  if (!(late && boundary_)) {
    add_directly(index, gradient.shard, gradient.rounds++ == 0);
    if (!boundary_) return;
    if (options_.predivide != 1) gradient.shard.div_(options_.predivide);
    replicas_.start(gradient.shard, name);
    return;
  }
  // The shard is being summed already: sum what came late by itself.
  at::Tensor rest = at::empty_like(gradient.shard);
  add_directly(index, rest, true);
  if (options_.predivide != 1) rest.div_(options_.predivide);
  replicas_.start(rest, name);
  replicas_.finish();
  gradient.shard.add_(rest);
}

void Gradients::add_directly(int index, const at::Tensor& into, bool first) {
  Unit& unit = units_[static_cast<size_t>(index)];
  UnitGradient& gradient = gradients_[static_cast<size_t>(index)];
  if (first) into.zero_();
  for (size_t p = 0; p < gradient.pending.size(); ++p) {
    const UnitParameter& parameter = unit.layout.parameters[p];
    at::Tensor& pending = gradient.pending[p];
    if (!pending.defined() || parameter.numel == 0) continue;
    put(into.narrow(0, parameter.offset, parameter.numel), pending, first);
  }
  release(gradient);
}

void Gradients::fold_into_local(int index) {
  UnitGradient& gradient = gradients_[static_cast<size_t>(index)];
  const Unit& unit = units_[static_cast<size_t>(index)];
  if (!gradient.local.defined()) {
    gradient.local = at::empty({unit.layout.padded_numel}, gradient.shard.options());
    gradient.local_fresh = true;
  }
  hold(index);
  if (gradient.local_fresh) gradient.local.zero_();
  for (size_t p = 0; p < gradient.pending.size(); ++p) {
    const UnitParameter& parameter = unit.layout.parameters[p];
    at::Tensor& pending = gradient.pending[p];
    if (pending.defined() && parameter.numel > 0)
      put(gradient.local.narrow(0, parameter.offset, parameter.numel), pending, gradient.local_fresh);
  }
  gradient.local_fresh = false;
  release(gradient);
}

// Cuts a unit into pieces. A piece either starts an empty bucket, fits beside what is there, or the bucket
// goes first.
void Gradients::add_pieces(int index, bool first) {
  const int64_t shard_numel = units_[static_cast<size_t>(index)].layout.shard_numel;
  UnitGradient& gradient = gradients_[static_cast<size_t>(index)];
  if (shard_numel == 0) return release(gradient);
  gradient.arrived = 0;
  gradient.unpacked = true;
  for (int64_t begin = 0; begin < shard_numel;) {
    const int64_t numel = std::min(bucket_piece_numel_, shard_numel - begin);
    if (filling_.numel + numel > bucket_piece_numel_) flush();
    filling_.pieces.push_back({index, begin, numel, first, begin + numel == shard_numel});
    filling_.numel += numel;
    begin += numel;
  }
  if (filling_.numel == bucket_piece_numel_) flush();
}

void Gradients::flush() {
  if (filling_.pieces.empty()) return;
  if (static_cast<int64_t>(in_flight_.size()) == kBucketsInFlight) {
    settle(in_flight_.front());
    in_flight_.pop_front();
  }
  Bucket bucket = std::move(filling_);
  filling_ = {};
  const int64_t ranks = shard_group_.size();
  bucket.staging = take_staging();
  bucket.sent = bucket.staging.narrow(0, 0, ranks * bucket.numel).view({ranks, bucket.numel});
  int64_t column = 0;
  std::vector<ReducePart> outs;
  for (const Piece& piece : bucket.pieces) {
    for (int rank = 0; rank < static_cast<int>(ranks); ++rank) {
      const at::Tensor row = bucket.sent[rank].narrow(0, column, piece.numel);
      if (rank == shard_group_.rank())
        add_own(piece, row, outs);
      else
        pack(piece, row, rank);
    }
    if (piece.last) {
      release(gradients_[static_cast<size_t>(piece.unit)]);
      gradients_[static_cast<size_t>(piece.unit)].local.reset();  // what comes later is a sum of its own
    }
    column += piece.numel;
  }
  if (options_.predivide != 1) bucket.sent.div_(options_.predivide);
  reduce(bucket, std::move(outs));
  counters_.buckets++;
  if (sums_whole_)
    counters_.all_reduce_elements += 2 * bucket.numel;
  else
    counters_.reduce_scatter_elements += ranks * bucket.numel;
  in_flight_.push_back(std::move(bucket));
  if (!options_.overlap) {
    settle(in_flight_.front());
    in_flight_.pop_front();
  }
}

at::Tensor Gradients::take_staging() {
  // Where memory is shared, one more than may be in flight: ranks that are slower may still read the last
  // one.
  const size_t most = kBucketsInFlight + (bucket_group().shares_memory() ? 1 : 0);
  if (staging_.size() + in_flight_.size() < most)
    return bucket_group().empty(shard_group_.size() * bucket_piece_numel_, options_.communication_dtype);
  Staging oldest = std::move(staging_.front());
  staging_.pop_front();
  oldest.work.wait();
  return oldest.memory;
}

// Sums go straight into the shards where those are fp32.
void Gradients::reduce(Bucket& bucket, std::vector<ReducePart> outs) {
  const std::string& name = units_[static_cast<size_t>(bucket.pieces.front().unit)].layout.name;
  if (options_.accumulation_dtype != at::kFloat) {
    bucket.sum = at::empty({bucket.numel}, bucket.sent.options().dtype(at::kFloat));
    outs.push_back({bucket.sum, false});
  }
  const at::Tensor sent = bucket.sent.view({-1});
  bucket.work = sums_whole_ ? replica_group_.all_reduce(std::move(outs), sent, name)
                            : shard_group_.reduce_scatter(std::move(outs), sent, name);
}

// Waits for a bucket's sums, and adds them to the shards where that is not done yet.
void Gradients::settle(Bucket& bucket) {
  bucket.work.wait_output();
  int64_t column = 0;
  for (const Piece& piece : bucket.pieces) {
    if (bucket.sum.defined()) hold(piece.unit);
    if (bucket.sum.defined())
      put(gradients_[static_cast<size_t>(piece.unit)].shard.narrow(0, piece.begin, piece.numel),
          bucket.sum.narrow(0, column, piece.numel), piece.first);
    column += piece.numel;
  }
  staging_.push_back({bucket.staging, std::move(bucket.work)});
}

template <class Use>
void Gradients::in_segments(const Piece& piece, int rank, Use use) const {
  const Unit& unit = units_[static_cast<size_t>(piece.unit)];
  const UnitGradient& gradient = gradients_[static_cast<size_t>(piece.unit)];
  const int64_t begin = rank * unit.layout.shard_numel + piece.begin, end = begin + piece.numel;
  if (gradient.local.defined()) return use(0, piece.numel, gradient.local.narrow(0, begin, piece.numel));
  int64_t done = begin;
  for (size_t p = 0; p < gradient.pending.size(); ++p) {
    const UnitParameter& parameter = unit.layout.parameters[p];
    const int64_t from = std::max(parameter.offset, begin), to = std::min(parameter.end(), end);
    if (from >= to || !gradient.pending[p].defined()) continue;
    if (from > done) use(done - begin, from - done, at::Tensor());
    use(from - begin, to - from, gradient.pending[p].narrow(0, from - parameter.offset, to - from));
    done = to;
  }
  if (done < end) use(done - begin, end - done, at::Tensor());
}

// Fills `row` with a rank's elements: gradients where there are some, zeros elsewhere.
void Gradients::pack(const Piece& piece, at::Tensor row, int rank) const {
  in_segments(piece, rank, [&](int64_t from, int64_t numel, const at::Tensor& values) {
    fill_row(row.narrow(0, from, numel), values);
  });
}

void Gradients::add_own(const Piece& piece, at::Tensor row, std::vector<ReducePart>& outs) {
  UnitGradient& gradient = gradients_[static_cast<size_t>(piece.unit)];
  if (options_.accumulation_dtype == at::kFloat) hold(piece.unit);
  const auto out = [&](int64_t from, int64_t numel) {
    return gradient.shard.narrow(0, piece.begin + from, numel);
  };
  // Of a local sum the shard may be a part.
  if (!reads_own_ || gradient.local.defined()) {
    pack(piece, row, shard_group_.rank());
    if (options_.accumulation_dtype == at::kFloat) outs.push_back({out(0, piece.numel), !piece.first});
    return;
  }
  in_segments(piece, shard_group_.rank(), [&](int64_t from, int64_t numel, const at::Tensor& values) {
    const bool as_it_lies = values.defined() && values.scalar_type() == row.scalar_type();
    outs.push_back({out(from, numel), !piece.first, as_it_lies ? values : at::Tensor()});
    if (!as_it_lies) fill_row(row.narrow(0, from, numel), values);
  });
}

void Gradients::release(UnitGradient& gradient) {
  for (at::Tensor& pending : gradient.pending) pending.reset();
  gradient.arrived = 0;
  gradient.unpacked = false;
}

void Gradients::end_backward() {
  // Units that some rank did not finish (parameters without gradient) are sent all the same: the others wait
  // for them.
  while (next_ < order_.size()) send(order_[next_++]);
  // Gradients that came after their unit had been sent go in a second round.
  for (int unit : order_)
    if (gradients_[static_cast<size_t>(unit)].arrived > 0) send(unit);
  flush();
  for (Bucket& bucket : in_flight_) settle(bucket);
  in_flight_.clear();
  if (boundary_) {
    if (shard_group_.size() > 1 && replica_group_.size() > 1)
      for (int unit : order_)
        replicas_.start(gradients_[static_cast<size_t>(unit)].shard,
                        units_[static_cast<size_t>(unit)].layout.name);
    replicas_.finish();
    if (!sums_whole_) counters_.all_reduce_elements = replicas_.elements();
  }
  if (!order_agreed_) agree_on_order();
}

// After the first backward all ranks take over the order in which rank 0's units became ready: it wastes no
// waiting.
void Gradients::agree_on_order() {
  order_agreed_ = true;
  if (all_.size() == 1 || order_.empty()) return;
  std::vector<int64_t> ready(ready_order_.begin(), ready_order_.end());
  for (int unit : order_)
    if (std::find(ready.begin(), ready.end(), unit) == ready.end()) ready.push_back(unit);
  at::Tensor shared = at::tensor(ready, at::kLong).to(units_.front().shard.device());
  all_.broadcast(shared, 0, "order of gradients").wait();
  shared = shared.cpu();
  for (size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<int>(shared.data_ptr<int64_t>()[i]);
}

void Gradients::abandon() {
  filling_ = {};
  in_flight_.clear();
  staging_.clear();
  clear();
}

void Gradients::clear() {
  for (UnitGradient& gradient : gradients_) {
    release(gradient);
    gradient.rounds = 0;
    gradient.local = gradient.whole;
    gradient.local_fresh = true;
  }
  if (memory_) memory_->release();
  std::fill(used_.begin(), used_.end(), 0);
}

}  // namespace zero::detail
