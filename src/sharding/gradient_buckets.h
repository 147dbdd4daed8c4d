#pragma once
// Sends gradients: pieces of units are packed into buckets, which are reduced while backward goes on, and
// their sums go into the units' shards.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "mesh/group_parts.h"
#include "sharding/gradient_sums.h"
#include "sharding/unit.h"
#include "sharding/unit_gradient.h"
#include "zero/mesh.h"
#include "zero/plan.h"

namespace zero::detail {

struct BucketCounters {
  int64_t buckets = 0;                  // reduce-scatters
  int64_t reduce_scatter_elements = 0;  // full size, padding included
  int64_t all_reduce_elements = 0;      // of sums that replicas make themselves, counted twice
};

class GradientBuckets {
 public:
  /// Everything given by reference outlives this; `sums` may be set later.
  GradientBuckets(const std::vector<Unit>& units, std::vector<UnitGradient>& gradients,
                  std::optional<GradientSums>& sums, Group shard_group, Group replica_group,
                  const Plan& plan);

  /// The ranks that buckets travel between.
  const Group& group() const { return sums_whole_ ? replica_group_ : shard_group_; }
  /// No shards, and replicas add up everything themselves in shared memory.
  bool sums_whole() const { return sums_whole_; }

  /// Called with each unit when its sums of this round are there.
  void when_summed(std::function<void(int unit)> summed) { summed_ = std::move(summed); }
  /// Sends a unit, piece by piece as buckets fill. `first`: its sum replaces what the shard's memory holds.
  /// `own`: the loan of its own sum, where that is packed; may be null.
  void add(int unit, bool first, const std::shared_ptr<const GradientSums::Loan>& own);
  /// Sends what is packed so far.
  void flush();
  /// Sends everything and waits for all sums.
  void finish();
  /// Forgets what is under way.
  void abandon();

  const BucketCounters& counters() const { return counters_; }

 private:
  /// A piece of every rank's shard of one unit, `numel` elements for each rank.
  struct Piece {
    int unit;
    int64_t begin, numel;
    bool first;  // of this unit since clear(): replaces instead of adding
    bool last;   // of this unit in this round: its pending gradients may go
    std::shared_ptr<const GradientSums::Loan> own = {};   // of what is packed, if it is this rank's own sum
    std::shared_ptr<const GradientSums::Loan> loan = {};  // from when its sums are needed
  };
  struct Bucket {
    std::vector<Piece> pieces;
    int64_t numel = 0;   // for each rank
    at::Tensor sum;      // [numel] fp32, where sums cannot go into the shards at once
    at::Tensor staging;  // memory of `sent`, for the next bucket
    at::Tensor sent;     // [ranks, numel] communication dtype
    Work work;
  };
  /// Memory of a bucket whose sums are there; other ranks may read it until `work` has been waited for.
  struct Staging {
    at::Tensor memory;
    Work work;
  };

  const UnitLayout& layout(int unit) const { return units_[unit].layout; }
  UnitGradient& gradient(int unit) { return gradients_[unit]; }
  /// The piece of its shard's sum, borrowed until the bucket is settled.
  at::Tensor borrow_sum(Piece& piece);
  bool sums_into_shards() const { return accumulation_dtype_ == at::kFloat; }
  std::vector<ReducePart> pack(Bucket& bucket);
  /// This rank's own elements and the sums' places; packs what cannot be read where it is.
  void add_own(Piece& piece, const at::Tensor& row, std::vector<ReducePart>& outs);
  at::Tensor take_staging();
  void reduce(Bucket& bucket, std::vector<ReducePart> outs);
  void settle_oldest();

  const std::vector<Unit>& units_;
  std::vector<UnitGradient>& gradients_;
  std::optional<GradientSums>& sums_;
  Group shard_group_, replica_group_;
  const Plan& plan_;
  at::ScalarType accumulation_dtype_;
  bool sums_whole_;
  bool reads_own_;           // this rank's own gradients are added from where they are
  int64_t piece_numel_ = 0;  // capacity of a bucket for each rank
  Bucket filling_;
  std::deque<Bucket> in_flight_;  // at most kBucketsInFlight, oldest first
  std::deque<Staging> staging_;   // longest unused first
  // Of the unit that was borrowed last: what its pieces share does not go to the disk between two of them.
  std::shared_ptr<const GradientSums::Loan> last_loan_;
  BucketCounters counters_;
  std::function<void(int unit)> summed_;
};

}  // namespace zero::detail
