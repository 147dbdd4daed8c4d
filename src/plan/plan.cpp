#include "zero/plan.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

#include "base/checked.h"
#include "plan/backward_play.h"
#include "plan/disk_pieces.h"
#include "plan/disk_plan.h"
#include "plan/layout.h"
#include "plan/link_traffic.h"
#include "plan/network_traffic.h"
#include "plan/rank_bytes.h"
#include "plan/state_bytes.h"
#include "plan/traffic.h"
#include "zero/error.h"
#include "zero/optimizer_rules.h"

namespace zero {
namespace {

void check_range(int64_t value, int64_t least, int64_t most, const char* name) {
  if (value >= least && value <= most) return;
  bool open = most == std::numeric_limits<int64_t>::max();
  fail(ErrorKind::Config, name,
       "expected " + std::to_string(least) + (open ? " or more" : " to " + std::to_string(most)) + ", got " +
           std::to_string(value));
}

void check_type(Dtype dtype, const char* name) {
  require(dtype == Dtype::f32 || dtype == Dtype::bf16 || dtype == Dtype::f16, ErrorKind::Config, name,
          "expected fp32, bf16 or fp16, got " + std::string(to_string(dtype)));
}

void check_shards(const EngineOptions& options, const RankPlaces& places) {
  constexpr int kMost = std::numeric_limits<int>::max();
  check_range(places.ranks, 1, kMost, "ranks");
  require(places.together >= 1 && places.ranks % places.together == 0, ErrorKind::Config, "together",
          std::to_string(places.together) + " ranks that share memory do not divide " +
              std::to_string(places.ranks) + " ranks");
  require(places.hosts.empty() || std::ssize(places.hosts) == places.ranks, ErrorKind::Config, "hosts",
          std::to_string(places.hosts.size()) + " are named for " + std::to_string(places.ranks) + " ranks",
          "name the host of every rank, or none");
  check_range(options.shard_group_ranks, 0, kMost, "shard_group_ranks");
  const int group = options.shard_group_ranks;
  require(group == 0 || placements_for(options.stage).optimizer == Placement::Shard, ErrorKind::Config,
          "shard_group_ranks",
          "stage " + std::to_string(options.stage) + " shards nothing, but shards in groups of " +
              std::to_string(group) + " ranks are asked for",
          "leave it at 0, or choose a higher stage");
  require(group == 0 || places.ranks % group == 0, ErrorKind::Config, "shard_group_ranks",
          std::to_string(group) + " ranks in a shard group do not divide " + std::to_string(places.ranks) +
              " ranks",
          "choose a divisor of the ranks, or 0 for all of them");
}

// Whether some unit may have such states there.
bool uses(Tier tier, const EngineOptions& options, Tier StateTiers::*kind) {
  return options.tiers.*kind == tier ||
         std::any_of(options.unit_tiers.begin(), options.unit_tiers.end(),
                     [=](const auto& unit) { return unit.second.*kind == tier; });
}
bool uses_disk(const EngineOptions& options, Tier StateTiers::*kind) {
  return uses(Tier::Disk, options, kind);
}

// Whether parameters may be kept elsewhere than where they are computed with.
bool moves_parameters(const EngineOptions& options, const RankPlaces& places) {
  return uses_disk(options, &StateTiers::parameter) ||
         (!places.on_cpu && uses(Tier::Host, options, &StateTiers::parameter));
}

void check_offload(const EngineOptions& options) {
  const OffloadOptions& offload = options.offload;
  for (const auto& [ratio, name] : {std::pair{offload.ratio, "offload.ratio"},
                                    {offload.parameter_ratio, "offload.parameter_ratio"},
                                    {options.gathered_ratio, "gathered_ratio"}})
    require(ratio >= 0 && ratio <= 1, ErrorKind::Config, name,
            "expected a number from 0 to 1, got " + std::to_string(ratio));
  check_range(offload.parameter_host_numel, 0, std::numeric_limits<int64_t>::max(),
              "offload.parameter_host_numel");
  check_range(offload.buffer_count, 2, 1024, "offload.buffer_count");
  check_range(offload.piece_numel, 1024, int64_t{1} << 32, "offload.piece_numel");
  require(offload.piece_numel % kStateBlockNumel == 0, ErrorKind::Config, "offload.piece_numel",
          "expected a multiple of " + std::to_string(kStateBlockNumel) + ", got " +
              std::to_string(offload.piece_numel));
  // Shards are read and sums are written as a whole, from memory without gaps.
  constexpr int64_t kLeastItemBytes = 2;
  const bool whole = uses_disk(options, &StateTiers::parameter) || uses_disk(options, &StateTiers::gradient);
  require(!whole || offload.piece_numel * kLeastItemBytes % kDiskAlignment == 0, ErrorKind::Config,
          "offload.piece_numel",
          "with parameters or gradients on disk expected a multiple of " +
              std::to_string(kDiskAlignment / kLeastItemBytes) + ", got " +
              std::to_string(offload.piece_numel));
  check_range(offload.block_bytes, kDiskAlignment, int64_t{1} << 30, "offload.block_bytes");
  require(offload.block_bytes % kDiskAlignment == 0, ErrorKind::Config, "offload.block_bytes",
          "expected a multiple of " + std::to_string(kDiskAlignment) + ", got " +
              std::to_string(offload.block_bytes));
  check_range(offload.queue_depth, 1, 4096, "offload.queue_depth");
  check_range(offload.threads, 1, 256, "offload.threads");
  const bool on_disk =
      whole || uses_disk(options, &StateTiers::master) || uses_disk(options, &StateTiers::optimizer);
  require(!on_disk || !offload.path.empty(), ErrorKind::Config, "offload.path",
          "states are to be on disk, but no directory is given", "name an existing directory on a disk");
}

// Where ranks replicate parameters, their memory is what all collectives of a step write into.
void check_parameters(const EngineOptions& options, const RankPlaces& places) {
  const bool shards = placements_for(options.stage).parameter == Placement::Shard;
  const std::string where = uses_disk(options, &StateTiers::parameter) ? "on disk" : "on the host";
  require(!moves_parameters(options, places) || shards || places.ranks == 1, ErrorKind::Unsupported,
          "tiers.parameter",
          "stage " + std::to_string(options.stage) + " keeps all parameters on each of " +
              std::to_string(places.ranks) + " ranks, which cannot be " + where,
          "choose stage 3");
}

void check_precision(const EngineOptions& options, const RankPlaces& places,
                     const OptimizerBytes& optimizer) {
  if (options.dtype) check_type(*options.dtype, "dtype");
  if (options.communication_dtype) check_type(*options.communication_dtype, "communication_dtype");
  check_type(options.accumulation_dtype, "accumulation_dtype");
  const bool rounds = options.stochastic_rounding;
  require(!rounds || places.on_cpu, ErrorKind::Unsupported, "stochastic_rounding",
          "parameters without a master are for ranks on CPU", "leave it off on devices");
  require(!rounds || optimizer.splits_master, ErrorKind::Unsupported, "stochastic_rounding",
          "a torch optimizer updates fp32 masters", "use one of zero's own optimizers");
  require(!options.autocast || *options.autocast == Dtype::bf16 || *options.autocast == Dtype::f16,
          ErrorKind::Config, "autocast", "expected bf16 or fp16");
  require(!options.autocast || *options.autocast != Dtype::f16 || options.loss_scaling, ErrorKind::Config,
          "autocast", "gradients in fp16 need loss scaling: small ones would be lost",
          "set loss_scaling, or autocast to bf16");
  require(!options.autocast || options.dtype.value_or(Dtype::f32) == Dtype::f32, ErrorKind::Config,
          "autocast", "parameters are not fp32, so there is nothing to cast", "leave dtype at fp32");
}

void check(const EngineOptions& options, const RankPlaces& places, const OptimizerBytes& optimizer) {
  constexpr int64_t kAny = std::numeric_limits<int64_t>::max();
  check_shards(options, places);
  check_range(options.accumulation_steps, 1, std::numeric_limits<int>::max(), "accumulation_steps");
  check_range(optimizer.states, 0, 64, "optimizer bytes");
  check_range(options.budget_bytes, -1, kAny, "budget_bytes");
  check_range(options.prefetch_bytes, 0, kAny, "prefetch_bytes");
  check_range(options.reduce_bucket_numel, 1, kAny, "reduce_bucket_numel");
  require(options.gradient_clipping >= 0 && std::isfinite(options.gradient_clipping), ErrorKind::Config,
          "gradient_clipping",
          "expected a finite number >= 0, got " + std::to_string(options.gradient_clipping));
  const double factor = options.gradient_predivide_factor;
  require(factor > 0 && std::isfinite(factor), ErrorKind::Config, "gradient_predivide_factor",
          "expected a finite number > 0, got " + std::to_string(factor));
  check_precision(options, places, optimizer);
  check_offload(options);
  check_parameters(options, places);
}

constexpr int64_t kSumInBucketBytes = 4;  // of sums while they are made

int64_t all_slab_bytes(const std::vector<UnitLayout>& units) {
  int64_t sum = 0;
  for (const UnitLayout& unit : units) sum += unit.slab_bytes();
  return sum;
}

Dtype resolve_wire(const Plan& plan, const EngineOptions& options) {
  if (options.communication_dtype) return *options.communication_dtype;
  const bool partial_sums = plan.placements.gradient == Placement::Partial && plan.accumulation_steps > 1;
  const bool sums_of_shards = plan.shard_ranks > 1 && plan.replica_ranks > 1;
  // What is divided before it travels is no longer as autograd made it.
  if (partial_sums || sums_of_shards || plan.gradient_predivide_factor != 1) return Dtype::f32;
  std::optional<Dtype> common;
  for (const UnitLayout& unit : plan.units) {
    if (!unit.trainable) continue;
    if (common && *common != unit.dtype) return Dtype::f32;
    common = unit.dtype;
  }
  return common.value_or(Dtype::f32);
}

int64_t resolve_budget(const Plan& plan, const EngineOptions& options) {
  if (plan.placements.parameter != Placement::Shard) return all_slab_bytes(plan.units);
  if (options.budget_bytes >= 0) return options.budget_bytes;
  // What computes, what is fetched meanwhile, and what both ends of a model read and so stays between.
  constexpr size_t kUnits = 3;
  std::vector<int64_t> slab_bytes;
  for (const UnitLayout& unit : plan.units)
    if (!unit.persistent) slab_bytes.push_back(unit.slab_bytes());
  std::sort(slab_bytes.begin(), slab_bytes.end(), std::greater<>());
  slab_bytes.resize(std::min(kUnits, slab_bytes.size()));
  return std::accumulate(slab_bytes.begin(), slab_bytes.end(), int64_t{0});
}

int64_t gather_window(const Plan& plan) {
  // A rank alone owns its slabs, unless they are copies of what is away.
  if (plan.placements.parameter != Placement::Shard) return 0;
  int64_t largest = 0, persistent = 0, others = 0;
  for (const UnitLayout& unit : plan.units) {
    if (plan.shard_ranks == 1 && !plan.is_away(unit)) continue;
    (unit.persistent ? persistent : others) += unit.slab_bytes();
    if (!unit.persistent) largest = std::max(largest, unit.slab_bytes());
  }
  return persistent + std::min(std::max(plan.budget_bytes, largest), others);
}

// Buckets whose bytes others read where they are: sums go straight into shards of fp32.
int64_t shared_bucket_bytes(const Plan& plan, int64_t piece) {
  const int64_t buckets = std::min<int64_t>(kBucketsInFlight + 1, std::ssize(played_buckets(plan)));
  const int64_t sent = buckets * piece * plan.shard_ranks * itemsize(plan.communication_dtype);
  const bool adds_later = plan.accumulation_dtype != Dtype::f32;
  return sent + (adds_later ? std::min(buckets, kBucketsInFlight) * piece * kSumInBucketBytes : 0);
}

int64_t bucket_bytes(const Plan& plan) {
  int64_t piece = 0, largest_shard = 0;
  for (const UnitLayout& unit : plan.units) {
    if (!unit.trainable) continue;
    piece = std::max(piece, bucket_piece_numel(unit, plan.shard_ranks, plan.reduce_bucket_numel));
    largest_shard = std::max(largest_shard, unit.shard_numel);
  }
  if (plan.sums_replicas_in_buckets) return shared_bucket_bytes(plan, piece);
  // What is sent and what is received, in the type of the wire, and the sum.
  auto in_flight = [&](int64_t part, int64_t ranks) {
    return kBucketsInFlight *
           (2 * part * ranks * itemsize(plan.communication_dtype) + part * kSumInBucketBytes);
  };
  int64_t bytes = plan.shard_ranks == 1       ? 0
                  : plan.buckets_share_memory ? shared_bucket_bytes(plan, piece)
                                              : in_flight(piece, plan.shard_ranks);
  if (plan.replica_ranks > 1) {
    const int64_t whole = std::min(plan.reduce_bucket_numel, largest_shard);
    const int64_t part = (whole + plan.replica_ranks - 1) / plan.replica_ranks;
    bytes += in_flight(part, plan.replica_ranks) + part * plan.replica_ranks * kSumInBucketBytes;
  }
  return bytes;
}

// Whether the optimizer changes some of the unit's states on disk; and whether all that it changes, but the
// parameter, is there.
bool has_states_on_disk(const Plan& plan, const UnitLayout& unit) {
  const bool master = unit.tiers.master == Tier::Disk && master_bytes_of(plan.state, unit.dtype) > 0;
  const bool states = unit.tiers.optimizer == Tier::Disk && plan.state.optimizer_bytes > 0;
  return unit.trainable && (master || states);
}
bool has_all_states_on_disk(const Plan& plan, const UnitLayout& unit) {
  const bool master = unit.tiers.master == Tier::Disk || master_bytes_of(plan.state, unit.dtype) == 0;
  return master && (unit.tiers.optimizer == Tier::Disk || plan.state.optimizer_bytes == 0);
}

// Whether sums travel between replicas when the backward is over, and are final only then.
bool replicas_add_at_the_end(const Plan& plan) {
  return plan.replica_ranks > 1 && !plan.sums_replicas_in_buckets;
}

// Why units cannot be updated while backward goes on; "" where they can.
std::string waits_for(const Plan& plan, const EngineOptions& options, const RankPlaces& places,
                      const OptimizerBytes& optimizer) {
  bool some = false;
  for (const UnitLayout& unit : plan.units) {
    const bool has_some = has_states_on_disk(plan, unit);
    some = some || has_some;
    if (has_some && !has_all_states_on_disk(plan, unit))
      return "some units have either their masters or their optimizer states on disk, not both";
  }
  if (!some) return "no states are on disk, whose transfers are all that it would hide";
  if (options.gradient_clipping > 0) return "gradient_clipping needs the norm of all gradients first";
  if (!optimizer.by_element) return "the optimizer does not update every element by itself";
  if (!options.offload.read_ahead) return "offload.read_ahead is off: nothing would be there in time";
  if (replicas_add_at_the_end(plan)) return "replicas add up their gradients when backward is over";
  return places.on_cpu ? "" : "ranks on devices decide there whether a step happens";
}

bool steps_in_backward(const Plan& plan, const EngineOptions& options, const RankPlaces& places,
                       const OptimizerBytes& optimizer) {
  const std::string reason = waits_for(plan, options, places, optimizer);
  const StepInBackward asked = options.offload.step_in_backward;
  const bool insists = asked == StepInBackward::On || asked == StepInBackward::InPlace;
  require(!insists || reason.empty(), ErrorKind::Config, "offload.step_in_backward",
          "units cannot be updated in backward: " + reason, "set it to auto or off");
  require(asked != StepInBackward::InPlace || !options.loss_scaling, ErrorKind::Config,
          "offload.step_in_backward",
          "in place no step can be undone, and loss scaling skips those whose gradients are not finite",
          "train in bf16, or set it to on");
  return asked != StepInBackward::Off && reason.empty();
}

}  // namespace

bool Plan::steps_in_backward(const UnitLayout& unit) const {
  return step_in_backward && has_states_on_disk(*this, unit) && has_all_states_on_disk(*this, unit);
}

bool Plan::keeps_gradient_off_disk(const UnitLayout& unit) const {
  return uses_up_gradient(unit) && (accumulation_steps == 1 || keeps_own_sums());
}

namespace {

// Whole units, the first ones first, until they have a share of the elements of all that count.
template <class Counts, class Take>
void take_share(std::vector<UnitLayout>& units, double share, Counts counts, Take take) {
  double all = 0, taken = 0;
  for (const UnitLayout& unit : units) all += counts(unit) ? static_cast<double>(unit.numel) : 0;
  for (UnitLayout& unit : units) {
    // Half of a unit's elements decide: a share of 1 takes all, of 0 none.
    const auto numel = static_cast<double>(unit.numel);
    if (!counts(unit) || taken + numel / 2 >= all * share) continue;
    take(unit);
    taken += numel;
  }
}

void place_by_name(Plan& plan, const EngineOptions& options) {
  for (const auto& [name, tiers] : options.unit_tiers) {
    const auto unit = std::find_if(plan.units.begin(), plan.units.end(),
                                   [&](const UnitLayout& layout) { return layout.name == name; });
    require(unit != plan.units.end(), ErrorKind::Config, "unit_tiers",
            "no unit of the plan is named \"" + name + "\"");
    unit->tiers = tiers;
  }
}

// What of a unit passes through the host's memory where the CPU updates it beside a device, unless the host
// has it anyway: the gradient, and the parameter, which has the master or a part of it, or is written from
// it.
int64_t staged_bytes_of(const Plan& plan, const UnitLayout& unit) {
  constexpr int64_t kAlignmentBytes = 64;
  const int64_t numel = std::min(unit.shard_numel, plan.offload.piece_numel);
  const auto staged = [&](Tier tier, int64_t each) {
    return tier == Tier::Device ? round_up(numel * each, kAlignmentBytes) : 0;
  };
  return staged(unit.tiers.gradient, plan.state.gradient_bytes) +
         staged(unit.tiers.parameter, itemsize(unit.dtype));
}

// Beside a device: sums that leave it.
void add_passing_sums(const Plan& plan, RankPlan& rank) {
  const bool whole = plan.placements.gradient == Placement::Partial && plan.accumulation_steps > 1;
  std::vector<int64_t> bytes, numels;
  for (const UnitLayout& unit : plan.units) {
    if (!unit.trainable || unit.tiers.gradient == Tier::Device) continue;
    bytes.push_back((whole ? unit.padded_numel : unit.shard_numel) * plan.state.gradient_bytes);
    numels.push_back(unit.shard_numel);
  }
  // Memory of two waits for the copies.
  if (!bytes.empty())
    rank.passing_sum_bytes =
        sums_in_memory(plan, bytes, numels) + *std::max_element(bytes.begin(), bytes.end());
}

// Beside a device.
void add_host(const Plan& plan, RankPlan& rank) {
  int64_t largest = 0;
  for (const UnitLayout& unit : plan.units)
    if (unit.trainable && unit.tiers.optimizer != Tier::Device)
      largest = std::max(largest, staged_bytes_of(plan, unit));
  rank.host_bytes = rank.tier_bytes[static_cast<size_t>(Tier::Host)] + rank.ring_bytes + rank.staging_bytes +
                    largest * plan.offload.buffer_count;
}

// Beside a device one of the two updates a unit.
void check_places_of_update(const Plan& plan) {
  for (const UnitLayout& unit : plan.units)
    require((unit.tiers.master == Tier::Device) == (unit.tiers.optimizer == Tier::Device),
            ErrorKind::Unsupported, unit.name,
            "its master is in tier " + std::string(to_string(unit.tiers.master)) +
                " and its optimizer states are in tier " + std::string(to_string(unit.tiers.optimizer)),
            "on a device keep both in its memory, or neither");
}

void place_units(Plan& plan, const EngineOptions& options) {
  plan.offload = options.offload;
  const auto any = [](const UnitLayout&) { return true; };
  take_share(
      plan.units, options.offload.ratio, [](const UnitLayout& unit) { return unit.trainable; },
      [&](UnitLayout& unit) {
        unit.tiers = options.tiers;
        unit.tiers.parameter = Tier::Device;
      });
  int64_t on_host = 0;
  take_share(plan.units, options.offload.parameter_ratio, any, [&](UnitLayout& unit) {
    const bool stays =
        options.tiers.parameter == Tier::Disk && unit.numel <= options.offload.parameter_host_numel - on_host;
    if (stays) on_host += unit.numel;
    unit.tiers.parameter = stays ? Tier::Host : options.tiers.parameter;
  });
  place_by_name(plan, options);
  if (plan.placements.parameter != Placement::Shard) return;
  take_share(plan.units, options.gathered_ratio, any, [](UnitLayout& unit) { unit.persistent = true; });
}

RankPlan bytes_of(const Plan& plan, bool on_cpu) {
  const StateBytes& state = plan.state;
  bool whole_gradient = plan.placements.gradient == Placement::Partial && plan.accumulation_steps > 1;
  RankPlan rank{.stage = plan.stage};
  for (const UnitLayout& unit : plan.units) {
    const auto add = [&](int64_t& purpose, Tier tier, int64_t bytes) {
      purpose += bytes;
      rank.tier_bytes[static_cast<size_t>(tier)] += bytes;
    };
    const bool common = plan.placements.parameter == Placement::Common;
    const int owners = plan.placements.parameter == Placement::Shard ? plan.shard_ranks : plan.common_ranks;
    const int64_t own_bytes = unit.slab_bytes() / owners;
    add(rank.parameter_bytes, unit.tiers.parameter, own_bytes);
    if (common) rank.common_bytes += unit.slab_bytes() - own_bytes;
    if (!unit.trainable) continue;
    for (const UnitParameter& parameter : unit.parameters)
      rank.largest_gradient_bytes =
          std::max(rank.largest_gradient_bytes, parameter.numel * itemsize(unit.dtype));
    int64_t gradient = (whole_gradient ? unit.padded_numel : unit.shard_numel) * state.gradient_bytes;
    if (plan.keeps_gradient_off_disk(unit) && !plan.keeps_own_sums()) gradient = 0;
    add(rank.gradient_bytes, unit.tiers.gradient, gradient);
    if (unit.tiers.gradient == Tier::Device || (on_cpu && unit.tiers.gradient == Tier::Host))
      rank.gradient_memory_bytes += gradient;
    add(rank.master_bytes, unit.tiers.master, unit.shard_numel * master_bytes_of(state, unit.dtype));
    add(rank.optimizer_bytes, unit.tiers.optimizer, state.optimizer_bytes_of(unit.shard_numel));
    add(rank.optimizer_bytes, Tier::Device, unit.factored_numel * kRuleStateBytes);
  }
  rank.offloaded_bytes = rank.tier_bytes[static_cast<size_t>(Tier::Disk)] +
                         (on_cpu ? 0 : rank.tier_bytes[static_cast<size_t>(Tier::Host)]);
  rank.gather_window_bytes = gather_window(plan);
  rank.bucket_bytes = bucket_bytes(plan);
  add_disk(plan, rank);
  if (!on_cpu) add_passing_sums(plan, rank);
  if (!on_cpu) add_host(plan, rank);
  return rank;
}

}  // namespace

RankPlan rank_bytes(const Plan& plan, bool on_cpu) { return bytes_of(plan, on_cpu); }

namespace {

// Where the ranks share memory there is no latency to make up for, and small buckets stay in the caches and
// hold less memory.
constexpr int64_t kSharedBucketNumel = 2 << 20;

// What follows from the options and the ranks alone.
Plan decide(const EngineOptions& options, const RankPlaces& places, const OptimizerBytes& optimizer) {
  const auto shares_memory = [&](int ranks) { return ranks > 1 && places.together % ranks == 0; };
  const bool all_share = shares_memory(places.ranks);
  Plan plan{.stage = options.stage, .ranks = places.ranks, .on_cpu = places.on_cpu};
  // At stage 0 one copy for all decides whether there are shards at all.
  const Placements asked = placements_for(options.stage, options.share_parameters && all_share);
  const int group = options.shard_group_ranks == 0 ? places.ranks : options.shard_group_ranks;
  plan.shard_ranks = asked.optimizer == Placement::Shard ? group : 1;
  plan.replica_ranks = places.ranks / plan.shard_ranks;
  const bool shards_share = shares_memory(plan.shard_ranks);
  const bool leaves = moves_parameters(options, places);
  plan.placements = placements_for(options.stage, options.share_parameters && shards_share && !leaves);
  if (leaves) plan.placements.parameter = Placement::Shard;
  if (plan.placements.parameter == Placement::Common) plan.common_ranks = plan.shard_ranks;
  // Over several hosts each keeps one copy of what its ranks would all have.
  const int neighbours = std::gcd(places.together, plan.shard_ranks);
  if (options.share_parameters && plan.placements.parameter == Placement::Replicate && neighbours > 1) {
    plan.placements.parameter = Placement::Common;
    plan.common_ranks = neighbours;
  }
  if (options.reduce_once) plan.placements.gradient = Placement::Partial;
  plan.accumulation_dtype = options.accumulation_dtype;
  plan.state = {.gradient_bytes = itemsize(plan.accumulation_dtype),
                .bf16_master_bytes = options.stochastic_rounding                       ? 0
                                     : options.split_master && optimizer.splits_master ? 2
                                                                                       : 4,
                .optimizer_bytes = optimizer.states,
                .block_numel = optimizer.block_numel,
                .block_bytes = optimizer.block_bytes,
                .whole_units = optimizer.whole_units};
  plan.accumulation_steps = options.accumulation_steps;
  plan.gradient_predivide_factor = options.gradient_predivide_factor;
  plan.reduce_bucket_numel = options.reduce_bucket_numel;
  if (shards_share || (plan.shard_ranks == 1 && all_share))
    plan.reduce_bucket_numel = std::min(plan.reduce_bucket_numel, kSharedBucketNumel);
  constexpr int kMostThatAddWhole = 4;  // as GradientBuckets has it
  plan.buckets_share_memory = places.on_cpu && shards_share;
  plan.sums_replicas_in_buckets =
      plan.shard_ranks == 1 && plan.replica_ranks > 1 && plan.replica_ranks <= kMostThatAddWhole &&
      shares_memory(plan.replica_ranks) && places.on_cpu && plan.accumulation_dtype == Dtype::f32;
  plan.overlap = options.overlap;
  plan.prefetch_bytes = options.overlap ? options.prefetch_bytes : 0;
  plan.cpu_operators = options.cpu_operators && places.on_cpu;
  return plan;
}

}  // namespace

int64_t bucket_piece_numel(const UnitLayout& unit, int shard_ranks, int64_t reduce_bucket_numel) {
  return std::clamp(reduce_bucket_numel / shard_ranks, std::min<int64_t>(1, unit.shard_numel),
                    unit.shard_numel);
}

RankPlaces RankPlaces::of(std::span<const int> memories, bool on_cpu) {
  // A block is in one memory if the memory changes nowhere inside it, but at its ends.
  const int ranks = static_cast<int>(memories.size());
  int together = ranks;
  for (int rank = 1; rank < ranks; ++rank)
    if (memories[rank] != memories[rank - 1]) together = std::gcd(together, rank);
  return {.ranks = ranks,
          .together = together,
          .on_cpu = on_cpu,
          .hosts = std::vector<int>(memories.begin(), memories.end())};
}

Plan make_plan(const ModuleSpec& root, const EngineOptions& options, const RankPlaces& places,
               const OptimizerBytes& optimizer, int64_t alignment_numel) {
  check(options, places, optimizer);
  Plan plan = decide(options, places, optimizer);
  const std::optional<Dtype> dtype = options.dtype;
  plan.units = make_layout(
      root,
      {.shard_ranks = plan.shard_ranks,
       .alignment_numel = std::max(alignment_numel, optimizer.block_numel),
       .group_numel = options.group_numel,
       .shard_unit = options.shard_unit,
       .persistent_numel = plan.placements.parameter == Placement::Shard ? options.persistent_numel : 0,
       .persistent_total_numel = options.persistent_total_numel,
       .fp32_patterns = options.fp32_parameters},
      dtype ? &*dtype : nullptr);
  for (UnitLayout& unit : plan.units)
    if (optimizer.factored && unit.trainable)
      for (const UnitParameter& parameter : unit.parameters)
        unit.factored_numel += factored_numel(parameter.part.global_shape);
  require(!options.stochastic_rounding ||
              std::any_of(plan.units.begin(), plan.units.end(),
                          [](const UnitLayout& unit) { return unit.trainable && unit.dtype == Dtype::bf16; }),
          ErrorKind::Config, "stochastic_rounding", "no parameter is trained in bf16",
          "set the dtype to bf16, or leave it off");
  place_units(plan, options);
  if (!places.on_cpu) check_places_of_update(plan);
  plan.step_in_backward = steps_in_backward(plan, options, places, optimizer);
  plan.communication_dtype = resolve_wire(plan, options);
  plan.budget_bytes = resolve_budget(plan, options);
  plan.rank = bytes_of(plan, places.on_cpu);
  add_traffic(plan);
  if (places.on_cpu) add_network_traffic(plan, places);
  add_disk_traffic(plan);
  add_link_traffic(plan);
  return plan;
}

}  // namespace zero
