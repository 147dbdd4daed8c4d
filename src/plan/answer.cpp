// The verb `zero plan` without its command line.
#include "zero/error.h"
#include "zero/hf_model.h"
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

PlanAnswer answer_config(const PlanRequest& request,
                         const std::function<ModuleSpec(const Config&)>& spec_of) {
  require(request.accumulation_steps == 1, ErrorKind::Config, "--accumulation",
          "the configuration says how many micro-batches a step has",
          "use --set gradient_accumulation_steps=N");
  std::optional<int64_t> memory = memory_of(request);
  Config config = adopt_model(load_config(request.config, request.overrides));
  int ranks = request.ranks;
  if (ranks == 0) ranks = config.parallel.ranks == 0 ? 1 : config.parallel.ranks;
  config = resolve(std::move(config), ranks);
  const ConfigPlan plan =
      plan_from_config(config, spec_of(config), ranks, memory, request.hosts, request.cuda_devices);
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
