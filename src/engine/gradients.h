#pragma once
// From the gradients that autograd produces to the summed fp32 gradient of this rank's shard.
//
// Two verbs, as a reducer should have: on_gradient() while backward runs, end_backward() when it is over.
// Units are sent in an order that all ranks share (reverse module order first, then the order in which rank 0
// saw them become ready), so ranks whose backward takes another path still issue the same collectives.

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "engine/replica_reducer.h"
#include "engine/sum_memory.h"
#include "engine/unit.h"
#include "zero/mesh.h"
#include "zero/placement.h"

namespace zero::detail {

struct GradientOptions {
  Placement placement = Placement::Shard;  // between micro-batches
  bool accumulates = false;                // several micro-batches a step
  at::ScalarType accumulation_dtype = at::kFloat;
  at::ScalarType communication_dtype = at::kFloat;
  int64_t bucket_numel = 0;  // elements of one collective over all ranks
  double predivide = 1;      // gradients are divided by it before they travel, multiplied back after
  bool overlap = true;       // false: wait for every bucket at once; same results
};

struct GradientCounters {
  int64_t buckets = 0;                  // reduce-scatters
  int64_t reduce_scatter_elements = 0;  // full size, padding included
  int64_t all_reduce_elements = 0;      // over replicas, counted twice
};

class Gradients {
 public:
  /// `units` outlives this. Parameters are numbered over all units, in order.
  Gradients(std::vector<Unit>& units, Group shard_group, Group replica_group, Group all,
            GradientOptions options);

  /// `boundary`: the optimizer steps after this backward.
  void begin_backward(bool boundary);
  /// A parameter's gradient, in its own shape. May come several times in one backward. The tensor is kept
  /// until it is packed.
  void on_gradient(int parameter, const at::Tensor& gradient);
  /// Sends what is left and waits for everything. Collective.
  void end_backward();
  /// Forgets a backward that failed.
  void abandon();

  /// The raw sum over ranks and micro-batches of a unit's shard, [shard_numel]. Valid at a boundary, until
  /// clear().
  const at::Tensor& shard_gradient(int unit) const { return gradients_[static_cast<size_t>(unit)].shard; }
  /// Per parameter: did this rank produce a gradient since clear()?
  const std::vector<char>& used() const { return used_; }
  /// Factor that turns the raw sum into a sum of true gradients (the predivision undone).
  double raw_scale() const { return options_.predivide; }
  void clear();

  const GradientCounters& counters() const { return counters_; }

 private:
  struct UnitGradient {
    at::Tensor shard;  // [shard_numel] accumulation dtype
    at::Tensor whole;  // [padded_numel] of a Partial placement that accumulates; `shard` is a part of it
    at::Tensor local;  // this rank's own sum over micro-batches: `whole` until it is packed
    std::vector<at::Tensor> pending;  // per parameter of the unit
    int arrived = 0;
    int rounds = 0;           // times it was sent since clear()
    bool local_fresh = true;  // `local` holds nothing yet
    bool queued = false;      // all parameters came in this backward
    bool sent = false;        // in this backward
    bool unpacked = false;    // sent, and pieces of it wait in the bucket that is being filled
  };
  /// A piece of every rank's shard of one unit, `numel` elements a rank.
  struct Piece {
    int unit;
    int64_t begin, numel;
    bool first;  // of this unit since clear(): replaces instead of adding
    bool last;   // of this unit in this round: its pending gradients may go
  };
  struct Bucket {
    std::vector<Piece> pieces;
    int64_t numel = 0;   // a rank
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

  void make_memory();
  bool sends_now() const { return options_.placement == Placement::Shard || boundary_; }
  void send_ready();
  void send(int unit);
  void add_directly(int unit, const at::Tensor& into, bool first);
  void send_whole(int unit, bool late);
  void fold_into_local(int unit);
  void add_pieces(int unit, bool first);
  void flush();
  void settle(Bucket& bucket);
  at::Tensor take_staging();
  void reduce(Bucket& bucket, std::vector<ReducePart> outs);
  /// What is known of elements [piece.begin, +numel) of rank `rank`'s shard, without gaps and in order:
  /// use(from, numel, values), where `from` counts from the piece's begin and `values` [numel] is undefined
  /// for zeros.
  template <class Use>
  void in_segments(const Piece& piece, int rank, Use use) const;
  void pack(const Piece& piece, at::Tensor row, int rank) const;
  /// This rank's own elements and the sums' places; packs what cannot be read where it is.
  void add_own(const Piece& piece, at::Tensor row, std::vector<ReducePart>& outs);
  void release(UnitGradient& gradient);
  /// Makes sure that the sums of a unit have memory.
  void hold(int unit) { memory_->hold(static_cast<size_t>(unit)); }
  void agree_on_order();

  /// The ranks that buckets travel between.
  const Group& bucket_group() const { return sums_whole_ ? replica_group_ : shard_group_; }

  std::vector<Unit>& units_;
  Group shard_group_, replica_group_, all_;
  GradientOptions options_;
  bool sums_whole_ = false;         // no shards, and replicas add up everything themselves in shared memory
  bool reads_own_ = false;          // this rank's own gradients are added from where they are
  int64_t bucket_piece_numel_ = 0;  // capacity of a bucket, elements a rank
  std::vector<UnitGradient> gradients_;
  std::optional<SumMemory> memory_;          // nothing where nothing is trained
  std::vector<std::pair<int, int>> places_;  // parameter -> unit, index inside
  std::vector<char> used_;

  std::vector<int> order_, ready_order_;
  bool order_agreed_ = false;
  size_t next_ = 0;  // in order_
  bool boundary_ = false;

  Bucket filling_;
  std::deque<Bucket> in_flight_;  // at most kBucketsInFlight, oldest first
  std::deque<Staging> staging_;   // longest unused first
  ReplicaReducer replicas_;
  GradientCounters counters_;
};

}  // namespace zero::detail
