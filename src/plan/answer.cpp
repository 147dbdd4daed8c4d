// The verb `zero plan` without its command line.
#include <algorithm>
#include <utility>

#include "plan/cluster_plan.h"
#include "plan/cluster_search.h"
#include "plan/pipeline_plan.h"
#include "zero/error.h"
#include "zero/hf_model.h"
#include "zero/placement.h"
#include "zero/plan_report.h"

namespace zero {
namespace {

std::optional<int64_t> memory_of(const PlanRequest& request) {
  if (request.memory.empty()) return std::nullopt;
  return parse_bytes(request.memory, "--memory");
}

template <typename Report>
std::string printed(const Report& report, bool json) {
  return json ? to_json(report) : to_text(report);
}

PlanAnswer answer_count(const PlanRequest& request) {
  require(request.overrides.empty(), ErrorKind::Config, "--set",
          "it changes a configuration, but there is none");
  require(request.hosts == 1, ErrorKind::Config, "--hosts", "a bare count does not say what ranks share",
          "give a configuration");
  CountOptions options{.parameters = parse_count(request.parameters, "--parameters"),
                       .ranks = request.ranks == 0 ? 1 : request.ranks,
                       .accumulation_steps = request.accumulation_steps,
                       .memory_bytes = memory_of(request)};
  return {printed(plan_from_count(options), request.json), {}};
}

// What the command line says of tiers. Where it names one and the configuration leaves no kind open, all that
// the configuration keeps where it computes are.
void use_budgets(const PlanRequest& request, std::optional<int64_t> memory, Config& config) {
  OffloadConfig& offload = config.offload;
  if (!request.disk.empty()) offload.how.path = request.disk;
  const bool asks = !request.disk.empty() || !request.host_memory.empty();
  if (asks && !offload.is_auto()) {
    require(memory.has_value(), ErrorKind::Config, request.disk.empty() ? "--host-memory" : "--disk",
            "states are moved there that do not fit a rank's memory, which is not given", "give --memory");
    for (TierChoice* kind : {&offload.parameter, &offload.gradient, &offload.optimizer}) {
      const bool is_free = *kind == TierChoice::Device;
      const bool fits_stage =
          kind != &offload.parameter || config.zero.stage == stage_that_shards_parameters();
      if (is_free && fits_stage) *kind = TierChoice::Auto;
    }
  }
  if (!offload.is_auto()) return;
  if (memory) offload.memory_bytes = *memory;
  if (!request.host_memory.empty())
    offload.host_memory_bytes = parse_bytes(request.host_memory, "--host-memory");
}

PlanAnswer answer_cluster(const PlanRequest& request, const SpecOf& spec_of, const PartOf& part_of) {
  for (const auto& [is_given, option] : {std::pair{!request.memory.empty(), "--memory"},
                                         {!request.host_memory.empty(), "--host-memory"},
                                         {!request.disk.empty(), "--disk"},
                                         {request.hosts != 1, "--hosts"}})
    require(!is_given, ErrorKind::Config, option, "the cluster's description says what there is",
            "leave it out with --cluster");
  Config config = adopt_model(load_config(request.config, request.overrides));
  Cluster cluster = read_cluster(request.cluster);
  if (request.ranks > 0) cluster = zero::part_of(std::move(cluster), request.ranks);
  const ModuleSpec whole = spec_of(config);
  const auto report = [&](const auto& found) {
    return request.json ? to_json(found, cluster) : to_text(found, cluster);
  };
  if (request.search) return {report(search_cluster(config, whole, part_of, cluster)), config.origin.notes};
  config = resolve(std::move(config), cluster.devices());
  const ModuleSpec part = part_of(config, whole, config.parallel.tensor - 1);
  return {report(predict(config, whole, part, cluster)), config.origin.notes};
}

PlanAnswer answer_config(const PlanRequest& request, const SpecOf& spec_of, const PartOf& part_of) {
  require(request.accumulation_steps == 1, ErrorKind::Config, "--accumulation",
          "the configuration says how many micro-batches a step has",
          "use --set gradient_accumulation_steps=N");
  std::optional<int64_t> memory = memory_of(request);
  Config config = adopt_model(load_config(request.config, request.overrides));
  int ranks = request.ranks;
  if (ranks == 0) ranks = config.parallel.ranks == 0 ? 1 : config.parallel.ranks;
  use_budgets(request, memory, config);
  config = resolve(std::move(config), ranks);
  const ModuleSpec whole = spec_of(config), part = part_of(config, whole, config.parallel.tensor - 1);
  if (config.parallel.pipeline > 1) {
    require(!memory, ErrorKind::Unsupported, "--memory", "a pipeline's plan does not search what fits",
            "compare with the bytes of each rank that it prints");
    const PipelinePlan plan = plan_pipeline(config, whole, part, ranks, request.hosts, request.cuda_devices);
    return {printed(plan, request.json), config.origin.notes};
  }
  TierMachine machine;
  if (request.machine && config.offload.is_auto())
    machine = request.machine(config.offload, std::max(1, ranks / request.hosts));
  const ConfigPlan plan =
      plan_from_config(config, part, ranks, memory, request.hosts, request.cuda_devices, machine);
  return {printed(plan, request.json), config.origin.notes};
}

}  // namespace

PlanAnswer answer(const PlanRequest& request, const SpecOf& spec_of, const PartOf& part_of) {
  require(request.config.empty() != request.parameters.empty(), ErrorKind::Config, "zero plan",
          "expected a configuration file or --parameters, got " +
              std::string(request.config.empty() ? "neither" : "both"));
  require(request.ranks >= 0, ErrorKind::Config, "--ranks",
          "expected at least 1, got " + std::to_string(request.ranks));
  require(request.cluster.empty() || !request.config.empty(), ErrorKind::Config, "--cluster",
          "a bare count says nothing of layers", "give a configuration");
  require(!request.search || !request.cluster.empty(), ErrorKind::Config, "--search",
          "it looks for settings on a cluster, and there is none", "give --cluster");
  if (!request.cluster.empty()) return answer_cluster(request, spec_of, part_of);
  return request.config.empty() ? answer_count(request) : answer_config(request, spec_of, part_of);
}

}  // namespace zero
