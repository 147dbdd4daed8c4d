#include "sharding/gradient_buckets.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>

#include "compute/memory_purpose.h"
#include "compute/wait_place.h"
#include "plan/layout.h"
#include "zero/torch_dtype.h"

namespace zero::detail {
namespace {

// With more ranks it is faster to add up parts and gather them.
constexpr int kMostReadersOfAll = 4;

}  // namespace

GradientBuckets::GradientBuckets(const std::vector<Unit>& units, std::vector<UnitGradient>& gradients,
                                 std::optional<GradientSums>& sums, Group shard_group, Group replica_group,
                                 const Plan& plan)
    : units_(units),
      gradients_(gradients),
      sums_(sums),
      shard_group_(std::move(shard_group)),
      replica_group_(std::move(replica_group)),
      plan_(plan),
      accumulation_dtype_(scalar_type_of(plan.accumulation_dtype)) {
  sums_whole_ = shard_group_.size() == 1 && replica_group_.shares_memory() &&
                replica_group_.size() <= kMostReadersOfAll && sums_into_shards();
  reads_own_ = !sums_whole_ && sums_into_shards() && plan_.gradient_predivide_factor == 1;
  for (const Unit& unit : units_)
    if (unit.layout.trainable)
      piece_numel_ = std::max(
          piece_numel_, bucket_piece_numel(unit.layout, shard_group_.size(), plan_.reduce_bucket_numel));
}

// Cuts a unit into pieces. A piece either starts an empty bucket, fits beside what is there, or the bucket
// goes first.
void GradientBuckets::add(int unit, bool first, const std::shared_ptr<const GradientSums::Loan>& own) {
  const int64_t shard_numel = layout(unit).shard_numel;
  if (shard_numel == 0) {
    gradient(unit).set_packed();
    return gradient(unit).move_to(GradientState::Sent);
  }
  gradient(unit).set_sent();
  gradient(unit).move_to(GradientState::Packing);
  for (int64_t begin = 0; begin < shard_numel;) {
    const int64_t numel = std::min(piece_numel_, shard_numel - begin);
    if (filling_.numel + numel > piece_numel_) flush();
    filling_.pieces.push_back({unit, begin, numel, first, begin + numel == shard_numel, own});
    filling_.numel += numel;
    begin += numel;
  }
  if (filling_.numel == piece_numel_) flush();
}

void GradientBuckets::flush() {
  if (filling_.pieces.empty()) return;
  const MemoryPurposeScope purpose(MemoryPurpose::Buckets);
  if (std::ssize(in_flight_) == kBucketsInFlight) settle_oldest();
  Bucket bucket = std::exchange(filling_, {});
  const int64_t ranks = shard_group_.size();
  bucket.staging = take_staging();
  bucket.sent = bucket.staging.narrow(0, 0, ranks * bucket.numel).view({ranks, bucket.numel});
  std::vector<ReducePart> outs = pack(bucket);
  if (plan_.gradient_predivide_factor != 1) bucket.sent.div_(plan_.gradient_predivide_factor);
  reduce(bucket, std::move(outs));
  counters_.buckets++;
  if (sums_whole_)
    counters_.all_reduce_elements += 2 * bucket.numel;
  else
    counters_.reduce_scatter_elements += ranks * bucket.numel;
  in_flight_.push_back(std::move(bucket));
  if (!plan_.overlap) settle_oldest();
}

// Fills the rows of all ranks; returns where the sums of this rank's go.
std::vector<ReducePart> GradientBuckets::pack(Bucket& bucket) {
  std::vector<ReducePart> outs;
  int64_t column = 0;
  for (Piece& piece : bucket.pieces) {
    for (int rank = 0; rank < shard_group_.size(); ++rank) {
      const at::Tensor row = bucket.sent[rank].narrow(0, column, piece.numel);
      if (rank == shard_group_.rank())
        add_own(piece, row, outs);
      else
        gradient(piece.unit).pack(rank * layout(piece.unit).shard_numel + piece.begin, row);
    }
    if (piece.last) {
      gradient(piece.unit).set_packed();
      gradient(piece.unit).move_to(GradientState::Sent);
    }
    column += piece.numel;
  }
  return outs;
}

at::Tensor GradientBuckets::borrow_sum(Piece& piece) {
  if (!piece.loan) piece.loan = last_loan_ = sums_->borrow(piece.unit);
  return piece.loan->sum.narrow(0, piece.begin, piece.numel);
}

void GradientBuckets::add_own(Piece& piece, const at::Tensor& row, std::vector<ReducePart>& outs) {
  const UnitGradient& own = gradient(piece.unit);
  const int64_t begin = shard_group_.rank() * layout(piece.unit).shard_numel + piece.begin;
  // Of an own sum the shard may be a part.
  if (!reads_own_ || own.has_own_sum()) {
    own.pack(begin, row);
    if (sums_into_shards()) outs.push_back({borrow_sum(piece), !piece.first});
    return;
  }
  const at::Tensor sum = borrow_sum(piece);
  own.in_segments(begin, piece.numel, [&](int64_t from, int64_t numel, const at::Tensor& values) {
    const bool as_it_lies = values.defined() && values.scalar_type() == row.scalar_type();
    outs.push_back({sum.narrow(0, from, numel), !piece.first, as_it_lies ? values : at::Tensor()});
    if (!as_it_lies) fill_row(row.narrow(0, from, numel), values);
  });
}

at::Tensor GradientBuckets::take_staging() {
  // Where memory is shared, one more than may be in flight: ranks that are slower may still read the last
  // one.
  const int64_t most = kBucketsInFlight + (group().shares_memory() ? 1 : 0);
  if (std::ssize(staging_) + std::ssize(in_flight_) < most) {
    at::Tensor fresh =
        input_tensor(group(), shard_group_.size() * piece_numel_, scalar_type_of(plan_.communication_dtype));
    // What pads a unit's rows is sent and never filled. Shared memory is zeros at first.
    if (!group().shares_memory()) fresh.zero_();
    return fresh;
  }
  Staging oldest = std::move(staging_.front());
  staging_.pop_front();
  const WaitPlace place("bucket's memory");
  oldest.work.wait();
  return oldest.memory;
}

// Sums go straight into the shards where those are fp32.
void GradientBuckets::reduce(Bucket& bucket, std::vector<ReducePart> outs) {
  const std::string& name = layout(bucket.pieces.front().unit).name;
  if (!sums_into_shards()) {
    bucket.sum = at::empty({bucket.numel}, bucket.sent.options().dtype(at::kFloat));
    outs.push_back({bucket.sum, false});
  }
  const at::Tensor sent = bucket.sent.view({-1});
  bucket.work = sums_whole_ ? all_reduce(replica_group_, std::move(outs), sent, name)
                            : reduce_scatter(shard_group_, std::move(outs), sent, name);
}

// Waits for a bucket's sums, and adds them to the shards where that is not done yet.
void GradientBuckets::settle_oldest() {
  Bucket bucket = std::move(in_flight_.front());
  in_flight_.pop_front();
  {
    const WaitPlace place("bucket");
    bucket.work.wait_output();
  }
  int64_t column = 0;
  for (Piece& piece : bucket.pieces) {
    if (bucket.sum.defined()) put(borrow_sum(piece), bucket.sum.narrow(0, column, piece.numel), piece.first);
    column += piece.numel;
  }
  staging_.push_back({bucket.staging, std::move(bucket.work)});
  for (const Piece& piece : bucket.pieces)
    if (piece.last) summed_(piece.unit);
}

void GradientBuckets::finish() {
  flush();
  while (!in_flight_.empty()) settle_oldest();
  last_loan_.reset();
}

void GradientBuckets::abandon() {
  filling_ = {};
  in_flight_.clear();
  staging_.clear();
  last_loan_.reset();
}

}  // namespace zero::detail
