// zero simulate CONFIG --ranks N --rank K --device FILE
#include "simulate/simulate.h"

#include <ATen/Parallel.h>

#include <iostream>

#include "train/trace_file.h"
#include "verbs.h"
#include "zero/error.h"
#include "zero/hf_model.h"
#include "zero/plan_report.h"

namespace zero::tool {
namespace {

struct SimulateArguments {
  std::string config, device, network, memory, trace;
  std::vector<std::string> overrides;
  int ranks = 0, rank = 0, steps = 0;
  bool json = false;
};

simulate::SimulateOptions options_of(const SimulateArguments& arguments) {
  simulate::SimulateOptions options;
  options.device = virtual_device::read_description(arguments.device);
  options.network = {.within_host = options.device.within_host,
                     .between_hosts = options.device.between_hosts,
                     .network_cards = options.device.network_cards};
  if (!arguments.network.empty())
    options.network = simulate::read_network(arguments.network, options.network);
  if (!arguments.memory.empty()) options.memory_bytes = parse_bytes(arguments.memory, "--memory");
  options.rank = arguments.rank;
  options.steps = arguments.steps;
  options.trace = !arguments.trace.empty();
  return options;
}

}  // namespace

int run_simulate(int argc, char** argv) {
  SimulateArguments arguments;
  CLI::App app(
      "zero simulate CONFIG --ranks N --rank K --device FILE\n"
      "Runs the engine as one rank of N that are not there, with shapes instead of data: peak memory by\n"
      "purpose, order of units, collectives, and what a step takes on the described device and network.");
  app.add_option("config", arguments.config, "configuration file; its data need not exist")->required();
  app.add_option("-n,--ranks", arguments.ranks, "ranks of the job [parallel.ranks, or 1]")
      ->check(at_least_one());
  app.add_option("--rank", arguments.rank, "which of them")->capture_default_str();
  app.add_option("--device", arguments.device, "description of the device: configs/devices/h100-sxm.json")
      ->required();
  app.add_option("--network", arguments.network,
                 "JSON with ranks_per_host [8], within_host, between_hosts, network_cards [the device's]");
  app.add_option("--memory", arguments.memory, "of the device, instead of the description's: 32GB, 80GiB");
  app.add_option("--set", arguments.overrides, "change a value of the configuration: section.key=value")
      ->allow_extra_args(false);
  app.add_option("--steps", arguments.steps, "steps; the last is told of [until it is steady: 2 or 3]")
      ->check(at_least_one());
  app.add_option("--trace", arguments.trace, "write the last step for Perfetto");
  app.add_flag("--json", arguments.json, "exact figures as JSON");
  if (!parse(app, argc, argv)) return 0;

  simulate::SimulateOptions options = options_of(arguments);
  Config config = adopt_model(load_config(arguments.config, arguments.overrides));
  options.ranks = arguments.ranks != 0 ? arguments.ranks : std::max(1, config.parallel.ranks);
  config = resolve(std::move(config), options.ranks);
  require(config.parallel.tensor == 1, ErrorKind::Unsupported, config.place("parallel.tensor"),
          "parallel.tensor: one rank alone cannot be simulated of several that share layers",
          "set it to 1 or remove the key");
  require(config.parallel.pipeline == 1, ErrorKind::Unsupported, config.place("parallel.pipeline"),
          "parallel.pipeline: a simulation is of ranks along dp alone",
          "`zero plan` shows a pipeline's stages");
  if (options.trace) check_trace_file(arguments.trace);
  for (const std::string& note : config.origin.notes) std::cerr << "zero: note: " << note << "\n";
  at::set_num_threads(1);  // what is computed is small
  const simulate::Simulation simulation = simulate::simulate(config, options);
  if (options.trace) write_trace_events({&simulation.trace_events, 1}, arguments.trace);
  std::cout << (arguments.json ? to_json(simulation, options) : to_text(simulation, options));
  return 0;
}

}  // namespace zero::tool
