#pragma once
// The plan: which parameter is where in which unit, what each rank holds, and what travels in a step.
// Pure arithmetic on shapes: no tensors, no ranks. The engine runs exactly what a plan says.
//
// Words: a *unit* is a group of parameters gathered together; its *slab* is the storage of its full
// parameters; a *shard* is the equal part of the slab that one rank of the sharding group owns.

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "zero/dtype.h"
#include "zero/placement.h"

namespace zero {

/// One parameter of a module tree. Parameters with the same non-negative `identity` are tied: one tensor,
/// many names.
struct ParameterSpec {
  std::string name;            // full dotted name from the root, e.g. "h.0.attn.c_attn.weight"
  std::vector<int64_t> shape;  // may hold zeros
  Dtype dtype = Dtype::f32;
  bool trainable = true;
  int64_t identity = -1;

  int64_t numel() const;
};

/// A module tree reduced to what the plan needs. Children and parameters stand in registration order.
struct ModuleSpec {
  std::string name;                       // full dotted name; "" for the root
  bool is_list = false;                   // ModuleList or Sequential: every child is a unit of its own
  std::vector<ParameterSpec> parameters;  // own parameters only
  std::vector<ModuleSpec> children;
  int64_t linear_in = 0, linear_out = 0;  // > 0: a linear layer of a language model, which may get an adapter
};

/// A parameter's place in its unit. Offsets and sizes count elements of the unit's dtype.
struct UnitParameter {
  std::string name;                  // the first of its names in module order
  std::vector<std::string> aliases;  // the other names of a tied parameter
  std::vector<int64_t> shape;
  int64_t offset = 0;  // first element inside the slab
  int64_t numel = 0;   // 0 for a parameter with a zero in its shape
  int64_t end() const { return offset + numel; }
};

/// One unit: parameters of one dtype, all trainable or all frozen, in one slab of shard_ranks equal shards.
/// Worked example, alignment 4, two ranks, parameters of 6 and 3 elements:
///   slab    [ a a a a | a a . . | b b b . | . . . . ]   numel 6 + 3, padded 16
///   shards  [     rank 0: 0..8  |    rank 1: 8..16  ]   shard_numel 8
struct UnitLayout {
  std::string name;  // module name, e.g. "h.0"; with "#bf16" or "#frozen" appended where a module was split
  Dtype dtype = Dtype::f32;
  bool trainable = true;
  std::vector<UnitParameter> parameters;  // ascending, disjoint offsets, each a multiple of the alignment
  int64_t numel = 0;                      // elements of its parameters, without padding
  int64_t padded_numel = 0;               // size of the slab: shard_ranks * shard_numel
  int64_t shard_numel = 0;                // elements one rank owns
  int64_t slab_bytes() const { return padded_numel * itemsize(dtype); }
};

struct LayoutOptions {
  int shard_ranks = 1;           // ranks that share a slab; >= 1
  int64_t alignment_numel = 32;  // every parameter and shard starts at a multiple of it (64 bytes in bf16)
  int64_t group_numel = 4 * 1024 * 1024;  // parameters outside lists are grouped into units up to this size
};

/// Splits a module tree into units, in module order, first touched first:
/// - each element of an outermost ModuleList/Sequential is a unit (nested lists belong to their element);
/// - parameters outside lists are grouped in order up to group_numel (a larger one is a unit alone), never
///   across a list; such a unit is named after the longest common module path, made unique ("": "root");
/// - a unit holds one dtype and one trainability: a module with several becomes several units;
/// - tied parameters stand where their first name stands; trainable if any of the names says so;
/// - units without elements (only zero-sized parameters) stay, with padded_numel 0.
/// `dtype_of_floats`, if not null, replaces the dtype of every floating-point parameter first (the compute
/// dtype). Throws Config for shard_ranks < 1, alignment < 1, group_numel < 1, duplicate names, negative or
/// overflowing shapes (named), trainable integers, tied parameters that disagree in shape or dtype (both
/// named).
std::vector<UnitLayout> make_layout(const ModuleSpec& root, const LayoutOptions& options,
                                    const Dtype* dtype_of_floats = nullptr);

/// How optimizer and gradients are kept, in bytes per trainable element.
struct StateBytes {
  int64_t gradient_bytes = 4;     // the accumulated gradient (fp32 unless grad_accum_dtype says otherwise)
  int64_t master_bytes = 4;       // fp32 master copy of fp16 parameters; fp32 parameters need none
  int64_t bf16_master_bytes = 4;  // of bf16 parameters; 2 where it is what the parameter lacks
  int64_t optimizer_bytes = 8;    // moments: 8 Adam, 4 SGD with momentum or Lion, 0 plain SGD
};

struct PlanOptions {
  int stage = 0;
  int ranks = 1;  // data-parallel ranks
  bool common_parameters =
      false;                  // ranks that share a shard (at stage 0 all) keep one copy of the parameters
  int shard_group_ranks = 0;  // hybrid: ranks that share a shard; 0: all; must divide `ranks`; not stage 0
  int accumulation_steps = 1;
  StateBytes state = {};
  // Gradients on the wire. Unset: the trainable parameters' dtype where gradients travel as autograd made
  // them, which loses nothing; fp32 where sums of several travel, or several dtypes.
  std::optional<Dtype> communication_dtype = {};
  int64_t budget_bytes = -1;  // resident slabs where parameters are sharded; -1: two largest
  int64_t prefetch_bytes = std::numeric_limits<int64_t>::max();  // at most this much is fetched ahead
  int64_t reduce_bucket_numel = 16 * 1024 * 1024;
};

/// Elements of a bucket where the ranks share memory, at most: there is no latency to make up for, and small
/// buckets stay in the caches and hold less memory.
inline constexpr int64_t kSharedBucketNumel = 2 << 20;

/// Gradient buckets that may be between packing and adding at a time.
inline constexpr int64_t kBucketsInFlight = 2;

/// A unit's gradient is reduced in buckets: the same piece of each rank's shard, this many elements a rank
/// (the last piece may be smaller), so that shard_ranks pieces are at most reduce_bucket_numel, or one
/// element a rank.
int64_t bucket_piece_numel(const UnitLayout& unit, int shard_ranks, int64_t reduce_bucket_numel);

/// Bytes one rank holds, by purpose (peak_bytes() of activations.h: how much at once), and elements that
/// travel in a step. Sums over units; "trainable" ones for everything but the parameters.
/// docs/memory_model.md has the formulas beside each other.
struct RankPlan {
  int stage = 0;
  int64_t parameter_bytes =
      0;  // persistent: full slabs (stages 0-2) or this rank's shard (stage 3, common memory)
  // Accumulated between micro-batches: padded_numel * gradient_bytes where gradients are partial and there
  // are several micro-batches (stages 0, 1), otherwise shard_numel * gradient_bytes.
  int64_t gradient_bytes = 0;
  int64_t master_bytes = 0;  // shard_numel * (bf16_)master_bytes; 0 for fp32 units: their shard is the master
  int64_t optimizer_bytes = 0;  // shard_numel * optimizer_bytes
  // Stage 3 on several shard ranks: slabs resident at the peak, min(max(budget, largest slab), all slabs).
  // One operator that needs several units at once holds those together even where they exceed it.
  int64_t gather_window_bytes = 0;
  // Staging of the gradient buckets in flight: kBucketsInFlight * largest bucket_piece_numel * ((sent +
  // received) * shard_ranks * bytes on the wire + 4). With replicas the same over their ranks, with pieces
  // of min(reduce_bucket_numel, largest shard) / replica_ranks, and one gathered sum. 0 for one rank.
  int64_t bucket_bytes = 0;
  // The largest gradient that autograd makes of one parameter, in the parameter's dtype, before it is packed.
  int64_t largest_gradient_bytes = 0;
  // Common parameters that other ranks are charged for. Their pages count as resident in every rank.
  int64_t common_bytes = 0;
  int64_t state_bytes() const { return parameter_bytes + gradient_bytes + master_bytes + optimizer_bytes; }
  int64_t total_bytes() const {
    return state_bytes() + gather_window_bytes + bucket_bytes + largest_gradient_bytes;
  }
  /// What the system shows as this rank's resident memory, but for activations and the process itself.
  int64_t resident_bytes() const { return total_bytes() + common_bytes; }

  // Elements per optimizer step as the ZeRO paper counts them (section 7): an all-gather or reduce-scatter of
  // n elements counts n, an all-reduce 2n. Padding is included here and named apart.
  int64_t all_gather_elements = 0;
  int64_t reduce_scatter_elements = 0;
  int64_t all_reduce_elements = 0;  // counted twice its size; stage 0 and hybrid replicas
  int64_t padding_elements = 0;     // padding in the sum (of all-reduced shards: the mean over ranks)
  int64_t traffic_elements() const {
    return all_gather_elements + reduce_scatter_elements + all_reduce_elements;
  }
};

struct Plan {
  PlanOptions options;
  Placements placements;
  int shard_ranks = 1;    // ranks that share a slab (1 where the optimizer is replicated)
  int replica_ranks = 1;  // ranks / shard_ranks
  std::vector<UnitLayout> units = {};
  Dtype communication_dtype = Dtype::f32;  // resolved
  int64_t budget_bytes = 0;                // resolved: the whole model where parameters are replicated
  RankPlan rank = {};                      // the same for every rank: shards are equal
};

/// Lays out the units for the options' stage (layout.shard_ranks is not used) and fills in every figure. The
/// traffic is that of a step in the steady state:
/// - trainable units are reduce-scattered per micro-batch where gradients are sharded, else once per step;
///   with replicas their shards are all-reduced once per step;
/// - replicated or common parameters: trainable units are gathered once after the step. Sharded ones: as
/// often as the
///   residency policy fetches them when it plays "each unit once forward, then once backward in reverse".
/// Throws Config for a stage outside 0..3, ranks < 1, a shard group that does not divide the ranks,
/// accumulation < 1, and byte sizes, budgets and buckets that make no sense.
Plan make_plan(const ModuleSpec& root, const PlanOptions& options, const LayoutOptions& layout = {},
               const Dtype* dtype_of_floats = nullptr);

}  // namespace zero
