// Where states are, as far as the configuration leaves it open.

#include <algorithm>
#include <cstdio>
#include <string>

#include "mesh/agree.h"
#include "plan/config_options.h"
#include "plan/config_tiers.h"
#include "plan/state_bytes.h"
#include "tiers/disk_rate.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/model_spec.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

constexpr const char* kPath = "offload.path";

// Every rank takes the first one's figures, so that all choose alike.
TierMachine measured_together(const Config& config, const Mesh& mesh, int host_ranks) {
  TierMachine machine;
  const OffloadOptions& how = config.offload.how;
  if (how.path.empty()) return machine;
  std::string figures;
  detail::together(mesh, "offload", [&] {
    if (mesh.rank() != 0) return;
    const int64_t free_bytes = tiers::free_disk_bytes(how.path, kPath);
    constexpr int64_t kSampleBytes = int64_t{64} << 20;
    const tiers::DiskRate rate = tiers::measure_disk({.directory = how.path,
                                                      .block_bytes = how.block_bytes,
                                                      .queue_depth = how.queue_depth,
                                                      .threads = how.threads},
                                                     std::min(kSampleBytes, free_bytes / 2));
    char text[96];
    std::snprintf(text, sizeof text, "%lld %.17g %.17g", static_cast<long long>(free_bytes), rate.read,
                  rate.write);
    figures = text;
  });
  long long free_bytes = 0;
  double read = 0, write = 0;
  const std::string shared = detail::text_of_rank(mesh, 0, figures, "disk rate");
  require(std::sscanf(shared.c_str(), "%lld %lg %lg", &free_bytes, &read, &write) == 3, ErrorKind::Internal,
          "disk rate", "rank 0 sent \"" + shared + "\"");
  machine.disk_free_bytes = free_bytes / host_ranks;
  machine.rates.disk_read = read / host_ranks;
  machine.rates.disk_write = write / host_ranks;
  return machine;
}

// Ranks of this host, as near as the axis tells.
int neighbours(const RankPlaces& places) { return std::max(1, places.together); }

void check_space(const Config& config, const Plan& plan, int ranks, int64_t free_bytes) {
  const int64_t needed = plan.rank.file_bytes * ranks;
  require(needed <= free_bytes, ErrorKind::Io, config.place(kPath),
          std::string(kPath) + ": " + config.offload.how.path + " has " + human_bytes(free_bytes) + " (" +
              std::to_string(free_bytes) + " bytes) free, the states of " + std::to_string(ranks) +
              " ranks take " + human_bytes(needed) + " (" + std::to_string(needed) + " bytes)",
          "free disk space, choose another directory or a lower offload.ratio");
}

// Before ranks begin; each opens its file there when the first step needs it.
void check_activation_path(const Config& config) {
  const RecomputePolicy& policy = config.recompute;
  const bool goes = policy.tier == ActivationTier::Disk || policy.tier == ActivationTier::Auto;
  if (!goes || policy.path.empty()) return;
  tiers::free_disk_bytes(
      policy.path, policy.path == config.offload.how.path ? kPath : "activation_checkpointing.offload_path");
}

}  // namespace

std::string place_states(EngineOptions& options, const Config& config, const Mesh& mesh) {
  if (!config.offload.is_auto()) return "";
  const RankPlaces places = RankPlaces::of(mesh.group("dp").memories(), mesh.device().is_cpu());
  const TierMachine machine = measured_together(config, mesh, neighbours(places));
  const std::optional<TierPlan> tiers =
      choose_config_tiers(config, trained_spec(config), options, places, machine);
  use_tiers(options, *tiers);
  return tiers->explained;
}

void check_offload(const Config& config, int ranks) {
  check_activation_path(config);
  if (!config.offload.uses_disk() && !config.offload.is_auto()) return;
  const int64_t free_bytes =
      config.offload.how.path.empty() ? INT64_MAX : tiers::free_disk_bytes(config.offload.how.path, kPath);
  const bool on_cpu = !runs_on_cuda(config.parallel, cuda_devices());
  const bool share = on_cpu && config.parallel.backend != ParallelConfig::Backend::Gloo;
  const RankPlaces places{.ranks = ranks, .together = share ? ranks : 1, .on_cpu = on_cpu};
  const EngineOptions options = options_from_config(config, ranks);
  const ModuleSpec model = trained_spec(config);
  if (config.offload.is_auto()) {
    choose_config_tiers(config, model, options, places, {.disk_free_bytes = free_bytes / ranks});
    return;
  }
  check_space(config, make_plan(model, options, places, bytes_of_rule(config.optimizer.rule)), ranks,
              free_bytes);
}

}  // namespace zero
