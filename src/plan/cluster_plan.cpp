#include "plan/cluster_plan.h"

#include <algorithm>
#include <string>

#include "plan/config_options.h"
#include "plan/largest_part.h"
#include "plan/state_bytes.h"
#include "zero/error.h"
#include "zero/model_shape.h"

namespace zero {
namespace {

// What the optimizer's step reads and writes: masters and moments both ways, gradients, parameters.
double optimizer_bytes_of(const Plan& plan) {
  double bytes = 0;
  for (const UnitLayout& unit : plan.units) {
    if (!unit.trainable) continue;
    const int64_t master = master_bytes_of(plan.state, unit.dtype);
    const int64_t parameter = itemsize(unit.dtype) * (master > 0 ? 1 : 2);
    const auto numel = static_cast<double>(unit.shard_numel);
    bytes += numel * static_cast<double>(2 * master + plan.state.gradient_bytes + parameter) +
             2 * static_cast<double>(plan.state.optimizer_bytes_of(unit.shard_numel));
  }
  return bytes;
}

DataTraffic data_traffic_of(const Plan& plan) {
  if (plan.ranks == 1) return {};
  const RankPlan& rank = plan.rank;
  int64_t padded = 0;
  for (const UnitLayout& unit : plan.units) padded += unit.padded_numel;
  const bool is_common =
      plan.placements.parameter == Placement::Common && plan.common_ranks == plan.shard_ranks;
  const auto gathered = static_cast<double>(is_common ? 0 : rank.all_gather_elements);
  const auto reduced = static_cast<double>(rank.reduce_scatter_elements + rank.all_reduce_elements);
  const Dtype parameters = plan.units.empty() ? Dtype::f32 : plan.units.front().dtype;
  DataTraffic traffic;
  traffic.bytes = gathered * static_cast<double>(itemsize(parameters)) +
                  reduced * static_cast<double>(itemsize(plan.communication_dtype));
  const double times = padded == 0 ? 0 : (gathered + reduced) / static_cast<double>(padded);
  traffic.calls = times * static_cast<double>(plan.units.size());
  const bool in_every_backward = plan.placements.gradient == Placement::Shard;
  const double micro_batches = plan.accumulation_steps;
  traffic.beside_backwards = in_every_backward ? micro_batches : 1;
  traffic.beside_forwards = plan.placements.parameter == Placement::Shard ? micro_batches : 1;
  return traffic;
}

void check_tiers(const Config& config) {
  const OffloadConfig& offload = config.offload;
  const bool stays = offload.parameter == TierChoice::Device && offload.gradient == TierChoice::Device &&
                     offload.optimizer == TierChoice::Device && offload.master_choice() == TierChoice::Device;
  require(stays && config.recompute.tier == ActivationTier::Device, ErrorKind::Unsupported, "--cluster",
          "states or activations that are not on the devices have no time in this prediction",
          "leave out offload, or plan without --cluster");
  require(config.recompute.every == kRecomputeNone || config.recompute.every == kRecomputeAll,
          ErrorKind::Unsupported, "--cluster", "of recomputation it knows all layers or none",
          "set activation_checkpointing.recompute to true or false");
}

}  // namespace

Cluster part_of(Cluster cluster, int ranks) {
  require(ranks >= 1 && ranks <= cluster.devices(), ErrorKind::Config, "--ranks",
          std::to_string(ranks) + " ranks on the " + std::to_string(cluster.devices()) + " devices of " +
              cluster.name);
  const int of_host = cluster.devices_per_host;
  if (ranks <= of_host) {
    // Cards are the ranks' share of the host's, of which there is at least one.
    cluster.hosts = 1;
    cluster.network_cards = std::max(1, cluster.network_cards * ranks / of_host);
    const double before = cluster.devices_per_core();
    cluster.devices_per_host = ranks;
    for (auto& [dtype, rate] : cluster.flops_per_s) rate *= before / cluster.devices_per_core();
    return cluster;
  }
  require(ranks % of_host == 0, ErrorKind::Config, "--ranks",
          std::to_string(ranks) + " ranks do not fill hosts of " + std::to_string(of_host) + " devices");
  cluster.hosts = ranks / of_host;
  return cluster;
}

StepLayout layout_of(const Config& config, int ranks) {
  const ParallelConfig& parallel = config.parallel;
  StepLayout layout{.dp = data_ranks(config, ranks),
                    .tp = parallel.tensor,
                    .pp = parallel.pipeline,
                    .micro_batches = config.gradient_accumulation_steps,
                    .recompute = config.recompute.every != kRecomputeNone,
                    .overlap = config.zero.overlap_comm.value_or(true)};
  if (parallel.pipeline == 1) return layout;
  layout.schedule = pipeline::kind_from(parallel.schedule);
  layout.chunks = layout.schedule == pipeline::Kind::Interleaved ? parallel.chunks : 1;
  return layout;
}

StepWork work_of(const Config& config, const PipelineRankPlan& rank, int ranks, double heaviest) {
  const ModelShape shape = shape_of(config);
  const LayerShare share = layer_share_of(config);
  const int64_t batch = config.train_micro_batch_size, sequence = config.data.sequence_length;
  const Dtype dtype = *config.precision.param_dtype;
  const auto tokens = static_cast<double>(batch * sequence), t = static_cast<double>(share.ranks);
  const double head = rank.has_last ? 2 * static_cast<double>(vocab_size_of(shape) * config.model.width) : 0;
  const ActivationBytes whole = activation_bytes(shape, batch, sequence, dtype, {}, share);
  const double part = static_cast<double>(rank.blocks) / static_cast<double>(config.model.layers);
  StepWork work{.dtype = dtype};
  const LargestPart largest = largest_part(shape, share.ranks);
  work.product_flops =
      tokens * ((rank.product_flops - head) * largest.products + head / (share.vocabulary ? t : 1));
  work.score_flops = tokens * rank.score_flops * largest.scores;
  work.kept_bytes =
      static_cast<double>(whole.kept) * part + static_cast<double>(rank.has_last ? whole.loss : 0);
  work.mean_of_heaviest = 1 / std::max(1.0, heaviest);
  work.tensor =
      tensor_traffic(shape, batch, sequence, dtype, share,
                     {.blocks = rank.blocks, .has_first = rank.has_first, .has_last = rank.has_last});
  work.message_bytes =
      static_cast<double>(pipeline_messages(shape, batch, sequence, dtype, share, 1, 1).bytes);
  work.data = data_traffic_of(rank.plan);
  work.optimizer_bytes = optimizer_bytes_of(rank.plan);
  work.tokens = tokens * static_cast<double>(config.gradient_accumulation_steps * data_ranks(config, ranks));
  return work;
}

ClusterPrediction predict(const Config& config, const ModuleSpec& model, const ModuleSpec& part,
                          const Cluster& cluster) {
  check_tiers(config);
  const int ranks = cluster.devices();
  require(config.parallel.tensor <= cluster.devices_per_host &&
              cluster.devices_per_host % config.parallel.tensor == 0,
          ErrorKind::Config, config.place("parallel.tensor"),
          "parallel.tensor: " + std::to_string(config.parallel.tensor) +
              " ranks that share layers do not fit hosts of " + std::to_string(cluster.devices_per_host) +
              " devices",
          "choose a divisor of these");
  Config placed = config;
  using Backend = ParallelConfig::Backend;
  placed.parallel.backend = cluster.shares_memory ? Backend::Shm : Backend::Nccl;
  const PipelinePlan plan =
      plan_pipeline(placed, model, part, ranks, cluster.hosts, cluster.devices_per_host);
  ClusterPrediction found{
      .config = config, .layout = layout_of(config, ranks), .memory_bytes = cluster.memory_bytes, .time = {}};
  const PipelineRankPlan* heaviest = &plan.ranks.front();
  double flops = 0;
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const PipelineRankPlan& one = plan.ranks[rank];
    flops += one.product_flops + one.score_flops;
    if (one.share > heaviest->share) heaviest = &one;
    const int64_t bytes = peak_bytes(one.plan, one.activations);
    if (bytes <= found.peak_bytes) continue;
    found.peak_bytes = bytes;
    found.peak_rank = static_cast<int>(rank);
    found.state_bytes = one.plan.rank.state_bytes();
    found.activation_bytes = one.activations.kept + std::max(one.activations.loss, one.activations.again);
  }
  StepWork work = work_of(config, *heaviest, ranks, heaviest->share);
  const double head = 2 * static_cast<double>(config.model.vocab_size * config.model.width);
  work.all_flops = 3 * work.tokens * flops;
  work.again_flops = work.tokens * (flops - head);
  found.time = time_of_step(cluster, found.layout, work, /*exact_schedule=*/true);
  return found;
}

}  // namespace zero
