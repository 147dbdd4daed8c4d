// zero train CONFIG
#include "zero/train.h"

#include <filesystem>
#include <iostream>

#include "device.h"
#include "next_steps.h"
#include "ranks.h"
#include "stop_signal.h"
#include "train/trace_file.h"
#include "verbs.h"
#include "zero/compute_threads.h"
#include "zero/cpu_allocator.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/hf_model.h"

namespace zero::tool {
namespace {

struct TrainArguments {
  std::string config, run_directory, resume, trace, device = "auto";
  std::vector<std::string> overrides;
  int ranks = 0;
  bool overwrite = false, trainable_only = false;
};

Config read(const TrainArguments& arguments, int ranks) {
  Config config = adopt_model(load_config(arguments.config, arguments.overrides));
  if (!arguments.run_directory.empty()) config.run.directory = arguments.run_directory;
  if (arguments.trainable_only) config.checkpoint.trainable_only = true;
  return resolve(config, ranks);
}

void conclude(const Config& config, const TrainResult& result, bool on_virtual) {
  const bool can_be_used = !result.checkpoint.empty() && !on_virtual;
  if (result.failed_saves > 0) std::cout << result.failed_saves << " saves failed on the way, see above\n";
  if (result.signal != 0) {
    std::cout << "stopped by signal " << result.signal << " after step " << result.steps
              << (result.checkpoint.empty() ? "; checkpoints are off, nothing is saved"
                                            : "; --resume auto goes on from here")
              << "\n";
  } else if (result.steps == result.first_step) {
    std::cout << "all " << result.steps << " steps were done already\n";
  } else {
    std::cout << "done: " << result.steps << " steps, " << result.tokens << " tokens, loss " << result.loss;
    if (result.evaluation) std::cout << ", evaluation loss " << result.evaluation->loss;
    std::cout << "\n";
    if (can_be_used) std::cout << next_steps(config.run.directory, !config.data.tokenizer.empty());
  }
  std::cout.flush();
}

int train_here(const Config& config, const Rendezvous& job, TrainOptions options, ToolDevice& device,
               const std::string& trace) {
  watch_stop_signals();
  if (!use_training_allocator() && job.rank == 0)
    std::cerr << "note: the kernel reserves no addresses for the allocator (ulimit -v): steps pay for page "
                 "faults\n";
  if (config.parallel.bind_cores) bind_to_cores(job.local_rank, job.local_size);
  MeshOptions mesh_options = mesh_options_of(config);
  if (!trace.empty()) mesh_options.trace = std::make_shared<Trace>();
  const Mesh mesh = join_ranks(config, job, mesh_options, &device);
  options.stop_signal = stop_signal;
  options.save_requested = save_requested;
  options.progress = stdout;
  if (device.is_virtual()) options.device_figures = [&] { return device.figures(); };
  const TrainResult result = train(config, mesh, options);
  if (!trace.empty()) write_trace(mesh, trace, device.trace_events(mesh));
  if (mesh.rank() == 0) conclude(config, result, device.is_virtual());
  if (!device.is_sound(mesh)) return 1;
  return result.signal == 0 ? 0 : 128 + result.signal;
}

}  // namespace

int run_train(int argc, char** argv) {
  TrainArguments arguments;
  CLI::App app(
      "zero train CONFIG [OPTIONS]\n"
      "Trains what the configuration describes; docs/configuration.md has its keys, docs/training.md what a "
      "run\n"
      "directory holds. Under torchrun, mpirun, srun or `zero launch` it joins their ranks.");
  app.add_option("config", arguments.config, "configuration file")->required();
  app.add_option("-n,--ranks", arguments.ranks, "start so many ranks on this host [1]")
      ->check(at_least_one());
  app.add_option("--set", arguments.overrides, "change a value of the configuration: section.key=value")
      ->allow_extra_args(false);
  app.add_option("--run-dir", arguments.run_directory, "instead of run.directory");
  app.add_option("--resume", arguments.resume,
                 "go on from a checkpoint: its directory, or auto: the run's newest, if it has one");
  app.add_flag("--overwrite", arguments.overwrite,
               "start anew in a run directory that is in use; its files get other names");
  app.add_flag("--trainable-only", arguments.trainable_only,
               "leave frozen parameters out of checkpoints (checkpoint.trainable_only)");
  app.add_option("--trace", arguments.trace,
                 "write what each rank did when to this file; ui.perfetto.dev opens it");
  app.add_option("--device", arguments.device, kDeviceHelp)->capture_default_str();
  if (!parse(app, argc, argv)) return 0;

  outlive_readers();
  const Ranks ranks = ranks_of(arguments.ranks);
  ToolDevice device(arguments.device);
  const Config config = read(arguments, ranks.ranks);
  TrainOptions options;
  options.resume = arguments.resume;
  options.overwrite = arguments.overwrite;
  if (ranks.must_check()) {
    if (!arguments.trace.empty()) check_trace_file(arguments.trace);
    if (ranks.is_first())
      for (const std::string& note : config.origin.notes) std::cerr << "zero: note: " << note << "\n";
    mesh_options_of(config);
    check_run(config, ranks.ranks, options);
  }
  if (!ranks.starts) return train_here(config, ranks.job, options, device, arguments.trace);
  // Told to stop, the ranks finish their step and save; whoever will not wait sends the signal again.
  const auto grace = mesh_options_of(config).timeout;
  return launch_self(ranks.ranks, argc, argv, grace);
}

}  // namespace zero::tool
