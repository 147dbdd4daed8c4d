// zero plan CONFIG | zero plan --parameters COUNT
#include <algorithm>
#include <iostream>

#include "lr_plot.h"
#include "verbs.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/hf_model.h"
#include "zero/model_spec.h"
#include "zero/plan_report.h"

namespace zero::tool {

int run_plan(int argc, char** argv) {
  PlanRequest request;
  CLI::App app(
      "zero plan CONFIG, or zero plan --parameters COUNT\n"
      "Bytes a rank holds and elements it sends in a step, for every stage. Needs no ranks and no tensors.");
  app.add_option("config", request.config, "configuration file");
  app.add_option("-p,--parameters", request.parameters, "a count instead of a model: 7.5e9, 124M, 1.5B, 1T");
  app.add_option("-n,--ranks", request.ranks, "data-parallel ranks [parallel.ranks, or 1]")
      ->check(at_least_one());
  app.add_option("--hosts", request.hosts, "hosts that the ranks are on: those of one share CPU memory [1]")
      ->check(at_least_one());
  app.add_option("--set", request.overrides, "change a value of the configuration: section.key=value")
      ->allow_extra_args(false);
  app.add_option("--accumulation", request.accumulation_steps, "micro-batches per step, for a count [1]")
      ->check(at_least_one());
  app.add_option("--memory", request.memory, "memory of a rank: asks what fits. 32GB, 80GiB");
  app.add_flag("--json", request.json, "exact figures as JSON");
  bool lr = false;
  app.add_flag("--lr", lr, "the learning rate over the steps of the run, drawn");
  if (!parse(app, argc, argv)) return 0;
  if (lr) {
    require(!request.config.empty() && !request.json, ErrorKind::Config, "--lr",
            "it draws the schedule of a configuration", "give one, without --parameters and --json");
    std::cout << lr_plot(adopt_model(load_config(request.config, request.overrides)),
                         std::max(1, request.ranks));
    return 0;
  }
  request.cuda_devices = cuda_devices();
  PlanAnswer result = answer(request, trained_spec);
  for (const std::string& note : result.notes) std::cerr << "zero: note: " << note << "\n";
  std::cout << result.text;
  return 0;
}

}  // namespace zero::tool
