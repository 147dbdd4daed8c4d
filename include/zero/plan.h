#pragma once
// The plan: which parameter is where in which unit, what each rank holds, and what travels in a step.
// Pure arithmetic on shapes: no tensors, no ranks. The engine runs exactly what a plan says.
//
// Words: a *unit* is a group of parameters gathered together; its *slab* is the storage of its full
// parameters; a *shard* is the equal part of the slab that one rank of the sharding group owns.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zero/communication.h"
#include "zero/dtype.h"
#include "zero/engine_options.h"
#include "zero/parameter_part.h"
#include "zero/placement.h"
#include "zero/tier.h"

namespace zero {

/// One parameter of a module tree. Parameters with the same non-negative `identity` are tied: one tensor,
/// many names.
struct ParameterSpec {
  std::string name;            // full dotted name from the root, e.g. "h.0.attn.c_attn.weight"
  std::vector<int64_t> shape;  // may hold zeros
  Dtype dtype = Dtype::f32;
  bool trainable = true;
  int64_t identity = -1;
  ParameterPart part = {};  // without a global shape: all of the parameter, replicated over no axis but "dp"

  int64_t numel() const;
};

/// A module tree reduced to what the plan needs. Children and parameters stand in registration order.
struct ModuleSpec {
  std::string name;                       // full dotted name; "" for the root
  bool is_list = false;                   // ModuleList or Sequential: every child is a unit of its own
  std::vector<ParameterSpec> parameters;  // own parameters only
  std::vector<ModuleSpec> children;
};

/// A parameter's place in its unit. Offsets and sizes count elements of the unit's dtype.
struct UnitParameter {
  std::string name;                  // the first of its names in module order
  std::vector<std::string> aliases;  // the other names of a tied parameter
  std::vector<int64_t> shape;
  int64_t offset = 0;       // first element inside the slab
  int64_t numel = 0;        // 0 for a parameter with a zero in its shape
  ParameterPart part = {};  // of the parameter in the whole model; always with its global shape
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
  StateTiers tiers = {};                  // where its states are while nobody uses them
  int64_t factored_numel = 0;             // fp32 numbers of the optimizer's that every rank keeps, in memory
  bool persistent = false;                // stage 3: resident until a step ends, beside the budget
  int64_t slab_bytes() const { return padded_numel * itemsize(dtype); }
};

/// How optimizer and gradients are kept, in bytes per trainable element.
struct StateBytes {
  int64_t gradient_bytes = 4;  // the accumulated gradient (fp32 unless grad_accum_dtype says otherwise)
  int64_t master_bytes = 4;    // fp32 master copy of fp16 parameters; fp32 parameters need none
  // Of bf16 parameters; 2 where it is what the parameter lacks, 0 where they have none and are rounded
  // stochastically.
  int64_t bf16_master_bytes = 4;
  int64_t optimizer_bytes = 8;  // the optimizer's states: 8 AdamW, 0 plain SGD
  int64_t block_numel = 1;      // elements whose states share something, and that no shard's border parts
  int64_t block_bytes = 0;      // what they share: scales
  bool whole_units = false;     // as OptimizerBytes has it
  int64_t optimizer_bytes_of(int64_t numel) const {
    return numel * optimizer_bytes + (numel + block_numel - 1) / block_numel * block_bytes;
  }
};

/// The ranks of the data-parallel axis, and which of them share memory.
struct RankPlaces {
  int ranks = 1;
  int together = 1;  // blocks of so many neighbouring ranks, or of any divisor, share memory; divides `ranks`
  bool on_cpu = true;
  // Of every rank the number of its host, where `together` does not say it: hosts with unlike numbers of
  // ranks. Empty: blocks of `together`.
  std::vector<int> hosts = {};
  Communication communication = Communication::exact;  // how gradients are summed over hosts

  /// Ranks of which those with the same number share memory, in the order of the axis (Group::memories()).
  static RankPlaces of(std::span<const int> memories, bool on_cpu = true);
};

/// What the plan needs to know of an optimizer.
struct OptimizerBytes {
  int64_t states = 8;         // an element: moments, as optimizer_state_bytes() of optimizer.h
  bool by_element = true;     // updates each element by itself, without norms of parameters
  bool whole_units = false;   // states on disk are in memory a unit at a time, not a piece
  bool splits_master = true;  // works on masters of which a bf16 parameter holds the upper half
  bool factored = false;      // and factored_numel() fp32 numbers of every parameter, on every rank
  int64_t block_numel = 1;    // elements of a block, and bytes for each beside its elements' own
  int64_t block_bytes = 0;
};

/// Bytes one rank holds, by purpose (peak_bytes() of activations.h: how much at once), and elements that
/// travel in a step. Sums over units; "trainable" ones for everything but the parameters.
/// docs/memory_model.md has the formulas beside each other.
struct RankPlan {
  int stage = 0;
  // Persistent: full slabs (stages 0-2), this rank's shard (stage 3), or of common memory an equal part.
  int64_t parameter_bytes = 0;
  // Accumulated between micro-batches: padded_numel * gradient_bytes where gradients are partial and there
  // are several micro-batches (stages 0, 1), otherwise shard_numel * gradient_bytes. Not those that an update
  // in backward uses up before they are put anywhere (Plan::keeps_gradient_off_disk()).
  int64_t gradient_bytes = 0;
  int64_t master_bytes = 0;  // shard_numel * (bf16_)master_bytes; 0 for fp32 units: their shard is the master
  int64_t optimizer_bytes = 0;  // shard_numel * optimizer_bytes + 4 * factored_numel
  // Stage 3 on several shard ranks, or on one with parameters away (Plan::is_away): slabs resident at the
  // peak, min(max(budget, largest slab), all slabs). One operator that needs several units at once holds
  // those together even where they exceed it.
  int64_t gather_window_bytes = 0;
  // Staging of gradient buckets. Where ranks share memory, three buckets (or as many as a backward has) of
  // what is sent: largest piece of a shard * shard_ranks * bytes on the wire; others read it there. Elsewhere
  // of the two in flight: 2 * largest piece of a shard * ((sent + received) * shard_ranks * bytes on the
  // wire + 4). With replicas the same over their ranks, with pieces of
  // min(reduce_bucket_numel, largest shard) / replica_ranks, and one gathered sum. 0 for one rank.
  int64_t bucket_bytes = 0;
  // The largest gradient that autograd makes of one parameter, in the parameter's dtype, before it is packed.
  int64_t largest_gradient_bytes = 0;
  // Common parameters that other ranks are charged for. Their pages count as resident in every rank.
  int64_t common_bytes = 0;
  // state_bytes() by tier.
  std::array<int64_t, kTiers.size()> tier_bytes = {};
  // Of them, those that are not in the memory that the other figures count: on disk, and beside a device the
  // host's.
  int64_t offloaded_bytes = 0;
  int64_t gradient_memory_bytes = 0;  // of gradient_bytes, what is not offloaded
  // States on disk: memory for pieces of them on their way when the optimizer steps, buffer_count * the
  // largest piece's states, each of whole blocks of 4 KiB; and the file's size.
  int64_t ring_bytes = 0, file_bytes = 0;
  // Beside the ring: a shard that is read for a gather, and what is sent of one where ranks have parts of
  // their own. Beside a device (there it is the host's) gather_window_bytes / shard_ranks, and the sums of
  // passing_sum_bytes once more.
  int64_t staging_bytes = 0;
  // What a step in the steady state moves, in blocks of 4 KiB: every state on disk once when the optimizer
  // steps (gradients are only read, and once more for the norm); a parameter's shard for every gather; a
  // unit's sum is written after every micro-batch and read before every one but the first; where the update
  // in backward uses it up, after every one but the last, and nobody reads it afterwards. Rules that look at
  // whole parameters (LAMB) read and write more, and so do gradients that come after their unit was sent.
  int64_t step_read_bytes = 0, step_written_bytes = 0;
  // New parameters of units that are updated in backward, from then to the step: at most those of all shards
  // on disk. They come while activations go.
  int64_t ahead_bytes = 0;
  // Beside a device: the host's memory that a rank takes, for states in Tier::Host, for pieces of those on
  // disk (ring_bytes, staging_bytes) and for pieces of what stays on the device while the CPU updates them. 0
  // on CPU.
  int64_t host_bytes = 0;
  // Memory for sums of gradients that are not kept where they are made, while they are made and go: of units
  // that are in buckets at a time, with those that wait for the disk or for their update.
  int64_t passing_sum_bytes = 0;
  // What a step in the steady state moves from the host's memory to a device, and back. Rules that look at
  // whole parameters (LAMB) move more where the CPU updates.
  int64_t step_up_bytes = 0, step_down_bytes = 0;
  int64_t state_bytes() const { return parameter_bytes + gradient_bytes + master_bytes + optimizer_bytes; }
  int64_t total_bytes() const {
    return state_bytes() - offloaded_bytes + (host_bytes > 0 ? 0 : ring_bytes + staging_bytes) + ahead_bytes +
           passing_sum_bytes + gather_window_bytes + bucket_bytes + largest_gradient_bytes;
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

/// What a host's ranks send to, and receive from, those of other hosts.
struct HostTraffic {
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
  bool operator==(const HostTraffic&) const = default;
};

/// Everything that is decided about a run before it starts. The engine holds, sends and computes by it.
struct Plan {
  int stage = 0;
  int ranks = 1;
  int shard_ranks = 1;    // ranks that share a slab (1 where the optimizer is replicated)
  int replica_ranks = 1;  // ranks / shard_ranks
  // Neighbouring ranks of one host that keep one copy of the parameters between them, where those are common:
  // a shard group, or its part on a host.
  int common_ranks = 1;
  Placements placements = {};
  std::vector<UnitLayout> units = {};
  StateBytes state = {};
  OffloadOptions offload = {};

  Dtype communication_dtype = Dtype::f32;  // of gradients on the wire
  Dtype accumulation_dtype = Dtype::f32;   // of summed gradients
  int accumulation_steps = 1;
  double gradient_predivide_factor = 1;
  int64_t reduce_bucket_numel = 16 * 1024 * 1024;  // elements of a gradient reduction, at most
  int64_t budget_bytes = 0;    // of resident slabs; the whole model where parameters are not sharded
  int64_t prefetch_bytes = 0;  // of slabs gathered ahead; 0 without overlap
  bool overlap = true;
  // The ranks between which buckets of gradients travel read each other's; of replicas without shards, sums
  // are added up from such buckets by each of them.
  bool buckets_share_memory = false, sums_replicas_in_buckets = false;
  bool on_cpu = true;             // ranks compute there: the host's memory is theirs
  bool cpu_operators = true;      // kernels of ours in place of LibTorch's: on CPU only
  bool step_in_backward = false;  // of units on disk

  RankPlan rank = {};  // the same for every rank: shards are equal
  // Parameters and gradients that cross the network in a step in the steady state, of each host of these
  // ranks, in the order of the hosts' first ranks. Empty where all ranks share memory, and on devices. Sums
  // of a few numbers (norms, losses, what ranks agree on) are not in it.
  std::vector<HostTraffic> network = {};
  bool split_master() const { return state.bf16_master_bytes == 2; }
  /// Whether the optimizer updates a unit in backward: all that it changes, but the parameter, is on disk.
  bool steps_in_backward(const UnitLayout& unit) const;
  /// Whether that uses up its summed gradient, which is in memory until then.
  bool uses_up_gradient(const UnitLayout& unit) const {
    return unit.tiers.gradient == Tier::Disk && steps_in_backward(unit);
  }
  /// Whether such a gradient never waits on disk for more micro-batches.
  bool keeps_gradient_off_disk(const UnitLayout& unit) const;
  /// Several micro-batches are added up on each rank before the sums travel.
  bool keeps_own_sums() const {
    return placements.gradient == Placement::Partial && accumulation_steps > 1 && ranks > 1;
  }
  bool updates_in_place() const {
    return step_in_backward && offload.step_in_backward == StepInBackward::InPlace;
  }
  /// Whether a unit's parameters are kept elsewhere than where they are computed with, and come for it.
  bool is_away(const UnitLayout& unit) const {
    return unit.tiers.parameter == Tier::Disk || (!on_cpu && unit.tiers.parameter == Tier::Host);
  }
};

/// The one derivation of what runs, for the engine and for `zero plan`. Lays out the units, decides what the
/// options leave open, and fills in every figure. The traffic is that of a step in the steady state:
/// - trainable units are reduce-scattered per micro-batch where gradients are sharded, else once per step;
///   with replicas their shards are all-reduced once per step;
/// - replicated or common parameters: trainable units are gathered once after the step. Sharded ones: as
///   often as the residency policy fetches them when it plays "each unit once forward, then once backward in
///   reverse".
/// Every parameter and shard starts at a multiple of alignment_numel (64 bytes in bf16). Throws Config for a
/// stage outside 0..3, ranks < 1, a shard group at stage 0 or one that does not divide the ranks,
/// accumulation < 1, types that nothing trains in, factors, sizes, budgets and buckets that make no sense;
/// Unsupported for parameters away (Plan::is_away) where ranks replicate them.
Plan make_plan(const ModuleSpec& root, const EngineOptions& options, const RankPlaces& places = {},
               const OptimizerBytes& optimizer = {}, int64_t alignment_numel = 32);

}  // namespace zero
