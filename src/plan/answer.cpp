// The verb `zero plan` without its command line.
#include <algorithm>

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

PlanAnswer answer_config(const PlanRequest& request,
                         const std::function<ModuleSpec(const Config&)>& spec_of) {
  require(request.accumulation_steps == 1, ErrorKind::Config, "--accumulation",
          "the configuration says how many micro-batches a step has",
          "use --set gradient_accumulation_steps=N");
  std::optional<int64_t> memory = memory_of(request);
  Config config = adopt_model(load_config(request.config, request.overrides));
  int ranks = request.ranks;
  if (ranks == 0) ranks = config.parallel.ranks == 0 ? 1 : config.parallel.ranks;
  use_budgets(request, memory, config);
  config = resolve(std::move(config), ranks);
  require(config.parallel.tensor == 1, ErrorKind::Unsupported, config.place("parallel.tensor"),
          "parallel.tensor: plans do not know of ranks that share layers", "set it to 1 or remove the key");
  if (config.parallel.pipeline > 1) {
    require(!memory, ErrorKind::Unsupported, "--memory", "a pipeline's plan does not search what fits",
            "compare with the bytes of each rank that it prints");
    const PipelinePlan plan =
        plan_pipeline(config, spec_of(config), ranks, request.hosts, request.cuda_devices);
    return {printed(plan, request.json), config.origin.notes};
  }
  TierMachine machine;
  if (request.machine && config.offload.is_auto())
    machine = request.machine(config.offload, std::max(1, ranks / request.hosts));
  const ConfigPlan plan =
      plan_from_config(config, spec_of(config), ranks, memory, request.hosts, request.cuda_devices, machine);
  return {printed(plan, request.json), config.origin.notes};
}

}  // namespace

PlanAnswer answer(const PlanRequest& request, const std::function<ModuleSpec(const Config&)>& spec_of) {
  require(request.config.empty() != request.parameters.empty(), ErrorKind::Config, "zero plan",
          "expected a configuration file or --parameters, got " +
              std::string(request.config.empty() ? "neither" : "both"));
  require(request.ranks >= 0, ErrorKind::Config, "--ranks",
          "expected at least 1, got " + std::to_string(request.ranks));
  return request.config.empty() ? answer_count(request) : answer_config(request, spec_of);
}

}  // namespace zero
