// zero eval MODEL --data FILE

#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "budget.h"
#include "device.h"
#include "ranks.h"
#include "verbs.h"
#include "zero/compute_threads.h"
#include "zero/cpu_allocator.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/inference.h"

namespace zero::tool {
namespace {

struct EvalArguments {
  std::string model, data, budget, disk, device = "auto";
  int ranks = 0;
  int64_t batches = 0, sequence_length = 0;
  bool json = false;
};

TokenFile open_data(const EvalArguments& arguments, const SavedModel& saved) {
  TokenFile file = TokenFile::open(arguments.data);
  if (saved.vocabulary) file.require_vocabulary(*saved.vocabulary);
  require(file.vocabulary().size <= saved.config.model.vocab_size, ErrorKind::Config, arguments.data,
          "it has " + std::to_string(file.vocabulary().size) + " tokens, the model " +
              std::to_string(saved.config.model.vocab_size),
          "use a file that the model's tokenizer made");
  return file;
}

void print(const EvalArguments& arguments, const SavedModel& saved, const EvalResult& result) {
  if (arguments.json) {
    const nlohmann::ordered_json json = {{"loss", result.loss},     {"perplexity", result.perplexity},
                                         {"tokens", result.tokens}, {"samples", result.samples},
                                         {"step", saved.step},      {"checkpoint", saved.checkpoint.string()},
                                         {"data", arguments.data}};
    std::cout << json.dump() << "\n";
    return;
  }
  std::cout << "loss " << result.loss << "  perplexity " << result.perplexity << "  tokens " << result.tokens
            << "  (" << saved.checkpoint.string() << " on " << arguments.data << ")\n";
}

// Each rank has its shard of the model and its part of the samples. A batch has tokens enough to make up for
// gathering each unit once more, so the run's budget does.
int evaluate_here(const EvalArguments& arguments, const SavedModel& saved, const Rendezvous& job,
                  ToolDevice& device) {
  const TokenFile file = open_data(arguments, saved);
  const Mesh mesh = join_ranks(saved.config, job, mesh_for_inference(saved.config, job.size), &device);
  try {
    Inference inference(saved, mesh,
                        {.budget_bytes = budget_of(arguments.budget, saved.config.residency.budget_bytes),
                         .disk = arguments.disk});
    const EvaluateOptions options{.sequence_length = saved.config.data.sequence_length,
                                  .batch_size = saved.config.train_micro_batch_size,
                                  .batches = arguments.batches};
    const EvalResult result = inference.evaluate(file, options);
    if (mesh.rank() == 0) print(arguments, saved, result);
    return device.is_sound(mesh) ? 0 : 1;
  } catch (const std::exception& error) {
    mesh.report_failure(error.what());
    throw;
  }
}

}  // namespace

int run_eval(int argc, char** argv) {
  EvalArguments arguments;
  CLI::App app(
      "zero eval MODEL --data FILE\n"
      "Loss (nats a token) and perplexity of a trained model on a token file.");
  app.add_option("model", arguments.model,
                 "run directory (its newest checkpoint), a checkpoint, or a model directory")
      ->required();
  app.add_option("--data", arguments.data, "token file, made by `zero tokenize`")->required();
  app.add_option("-n,--ranks", arguments.ranks, "start so many ranks on this host [1]")
      ->check(at_least_one());
  app.add_option("--batches", arguments.batches, "batches a rank takes at most [the whole file]")
      ->check(at_least_one());
  app.add_option("--sequence-length", arguments.sequence_length,
                 "tokens of a sample [as trained; 1024 at most]")
      ->check(at_least_one());
  app.add_option("--budget", arguments.budget, kBudgetHelp + " [the run's residency.budget]");
  app.add_option("--disk", arguments.disk, kDiskHelp);
  app.add_option("--device", arguments.device, kDeviceHelp)->capture_default_str();
  app.add_flag("--json", arguments.json, "exact figures as JSON");
  if (!parse(app, argc, argv)) return 0;

  budget_of(arguments.budget, 0);
  ToolDevice device(arguments.device);
  const Ranks ranks = ranks_of(arguments.ranks);
  SavedModel saved = find_model(arguments.model);
  if (arguments.sequence_length > 0) saved.config.data.sequence_length = arguments.sequence_length;
  require(saved.config.data.sequence_length <= saved.config.model.context_length, ErrorKind::Config,
          "--sequence-length",
          "expected at most the model's context of " + std::to_string(saved.config.model.context_length));
  if (!ranks.starts) return evaluate_here(arguments, saved, ranks.job, device);
  open_data(arguments, saved);
  return launch_self(ranks.ranks, argc, argv);
}

}  // namespace zero::tool
