// zero plan CONFIG | zero plan --parameters COUNT
#include <algorithm>
#include <iostream>

#include "base/terminal.h"
#include "lr_plot.h"
#include "tiers/disk_rate.h"
#include "verbs.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/hf_model.h"
#include "zero/model_spec.h"
#include "zero/parameter_summary.h"
#include "zero/plan_report.h"

namespace zero::tool {

namespace {

// "READ" or "READ,WRITE".
tiers::DiskRate rate_of(const std::string& text) {
  const size_t comma = text.find(',');
  const std::string read = text.substr(0, comma);
  const std::string write = comma == std::string::npos ? read : text.substr(comma + 1);
  return {.read = static_cast<double>(parse_bytes(read, "--disk-rate")),
          .write = static_cast<double>(parse_bytes(write, "--disk-rate"))};
}

// What each of a host's ranks gets of its disk.
TierMachine machine_of(const OffloadConfig& offload, const std::string& disk_rate, int host_ranks) {
  TierMachine machine;
  if (offload.how.path.empty()) return machine;
  machine.disk_free_bytes = tiers::free_disk_bytes(offload.how.path, "--disk") / host_ranks;
  const tiers::DiskRate rate = disk_rate.empty()
                                   ? tiers::measure_disk({.directory = offload.how.path,
                                                          .block_bytes = offload.how.block_bytes,
                                                          .queue_depth = offload.how.queue_depth,
                                                          .threads = offload.how.threads,
                                                          .key = "--disk"})
                                   : rate_of(disk_rate);
  machine.rates.disk_read = rate.read / host_ranks;
  machine.rates.disk_write = rate.write / host_ranks;
  return machine;
}

// Of the chosen stage; the types and rules do not depend on the ranks.
std::string rules_text(const PlanRequest& request) {
  Config config = adopt_model(load_config(request.config, request.overrides));
  const int ranks = std::max({1, request.ranks, config.parallel.ranks});
  config = resolve(std::move(config), ranks);
  const ModuleSpec spec = trained_spec(config);
  const int replicas = ranks / (config.parallel.pipeline * config.parallel.tensor);
  const ConfigPlan plan = plan_from_config(config, spec, replicas);
  const OptimizerRule rule = config.optimizer.effective_rule();
  return to_text(summarise_parameters(plan.stages[static_cast<size_t>(config.zero.stage)],
                                      engine_options_of(config, replicas), rule, rule_lr(rule)),
                 line_columns(stdout));
}

}  // namespace

int run_plan(int argc, char** argv) {
  PlanRequest request;
  CLI::App app(
      "zero plan CONFIG, or zero plan --parameters COUNT\n"
      "Bytes a rank holds and elements it sends in a step, for every stage. Needs no ranks and no tensors.");
  app.add_option("config", request.config, "configuration file");
  app.add_option("-p,--parameters", request.parameters, "a count instead of a model: 7.5e9, 124M, 1.5B, 1T");
  app.add_option("-n,--ranks", request.ranks, "ranks [parallel.ranks, or 1; with --cluster all devices]")
      ->check(at_least_one());
  app.add_option("--hosts", request.hosts, "hosts that the ranks are on: those of one share CPU memory [1]")
      ->check(at_least_one());
  app.add_option("--set", request.overrides, "change a value of the configuration: section.key=value")
      ->allow_extra_args(false);
  app.add_option("--accumulation", request.accumulation_steps, "micro-batches per step, for a count [1]")
      ->check(at_least_one());
  app.add_option("--memory", request.memory, "memory of a rank: asks what fits. 32GB, 80GiB");
  app.add_option("--host-memory", request.host_memory,
                 "of a rank, beside a device: states go there that do not fit --memory");
  app.add_option(
      "--disk", request.disk,
      "directory on a disk: states go there that do not fit --memory, and the rest of the plan says so");
  app.add_option(
      "--cluster", request.cluster,
      "description of a cluster (configs/clusters/): memory, time of a step by part, tokens/s on it");
  app.add_flag("--search", request.search,
               "the ten best settings for the cluster and the configuration's train_batch_size");
  std::string disk_rate;
  app.add_option("--disk-rate", disk_rate,
                 "of all ranks of a host, a second: 1.5GB, or 1.5GB,1.2GB for reading "
                 "and writing [measured in --disk]");
  app.add_flag("--json", request.json, "exact figures as JSON");
  bool lr = false;
  app.add_flag("--lr", lr, "the learning rate over the steps of the run, drawn");
  bool rules = false;
  app.add_flag("--rules", rules, "which parameters get which rule, rates, type and group");
  if (!parse(app, argc, argv)) return 0;
  if (rules) {
    require(!request.config.empty() && !request.json && !lr, ErrorKind::Config, "--rules",
            "it shows the optimizer of a configuration", "give one, without --parameters, --json and --lr");
    std::cout << rules_text(request);
    return 0;
  }
  if (lr) {
    require(!request.config.empty() && !request.json, ErrorKind::Config, "--lr",
            "it draws the schedule of a configuration", "give one, without --parameters and --json");
    std::cout << lr_plot(adopt_model(load_config(request.config, request.overrides)),
                         std::max(1, request.ranks));
    return 0;
  }
  request.cuda_devices = cuda_devices();
  request.machine = [&](const OffloadConfig& offload, int host_ranks) {
    return machine_of(offload, disk_rate, host_ranks);
  };
  PlanAnswer result = answer(request, trained_spec, tensor_part);
  for (const std::string& note : result.notes) std::cerr << "zero: note: " << note << "\n";
  std::cout << result.text;
  return 0;
}

}  // namespace zero::tool
