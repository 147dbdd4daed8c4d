// zero generate MODEL --prompt TEXT
#include "zero/generate.h"

#include <iostream>

#include "base/utf8.h"
#include "budget.h"
#include "device.h"
#include "ranks.h"
#include "text.h"
#include "verbs.h"
#include "zero/error.h"
#include "zero/inference.h"

namespace zero::tool {
namespace {

struct GenerateArguments {
  std::string model, prompt, tokenizer, budget, disk, device = "auto";
  int ranks = 0;
  GenerateOptions options;
};

Tokenizer load_tokenizer(const GenerateArguments& arguments, const SavedModel& saved) {
  const std::string& path = arguments.tokenizer.empty() ? saved.config.data.tokenizer : arguments.tokenizer;
  require(!path.empty(), ErrorKind::Config, "--tokenizer",
          "the run's configuration names no tokenizer, and the model directory holds none",
          "give the one its text was made with");
  Tokenizer tokenizer = Tokenizer::load(path);
  require(!saved.vocabulary || tokenizer.vocabulary() == *saved.vocabulary, ErrorKind::Config, path,
          "it is not the tokenizer that " + saved.checkpoint.string() + " was trained with",
          "give that one with --tokenizer");
  return tokenizer;
}

/// All that a text needs but the model's values.
struct Request {
  SavedModel saved;
  Tokenizer tokenizer;
  std::vector<int64_t> prompt;
  GenerateOptions options;
};

Request check(const GenerateArguments& arguments) {
  arguments.options.check();
  budget_of(arguments.budget, 0);
  require_utf8(arguments.prompt, "--prompt");
  SavedModel saved = find_model(arguments.model);
  Tokenizer tokenizer = load_tokenizer(arguments, saved);
  const std::vector<int32_t> ids = tokenizer.encode_with_specials(arguments.prompt, "--prompt");
  require(!ids.empty(), ErrorKind::Config, "--prompt", "expected some text, got none");
  GenerateOptions options = arguments.options;
  options.stop_tokens = saved.end_tokens;
  if (const auto end = tokenizer.end_of_text(); end && options.stop_tokens.empty())
    options.stop_tokens = {*end};
  return {std::move(saved), std::move(tokenizer), {ids.begin(), ids.end()}, std::move(options)};
}

void print(const std::string& prompt, const std::vector<int64_t>& made, const Tokenizer& tokenizer) {
  std::cout << prompt << printable(decoded(tokenizer, made)) << std::endl;
}

int generate_here(const GenerateArguments& arguments, const Request& request, const Rendezvous& job,
                  ToolDevice& device) {
  const Config& config = request.saved.config;
  const Mesh mesh = join_ranks(config, job, mesh_for_inference(config, job.size), &device);
  try {
    // What is on a disk may be more than memory has room for.
    const int64_t unset = arguments.disk.empty() ? kAllBytes : -1;
    Inference inference(request.saved, mesh,
                        {.budget_bytes = budget_of(arguments.budget, unset), .disk = arguments.disk});
    const std::vector<int64_t> made = inference.generate(request.prompt, request.options);
    if (mesh.rank() == 0) print(arguments.prompt, made, request.tokenizer);
    return device.is_sound(mesh) ? 0 : 1;
  } catch (const std::exception& error) {
    mesh.report_failure(error.what());
    throw;
  }
}

}  // namespace

int run_generate(int argc, char** argv) {
  GenerateArguments arguments;
  GenerateOptions& options = arguments.options;
  CLI::App app(
      "zero generate MODEL --prompt TEXT\n"
      "Goes on with a text as a trained model would.");
  app.add_option("model", arguments.model,
                 "run directory (its newest checkpoint), a checkpoint, or a model directory")
      ->required();
  app.add_option("--prompt", arguments.prompt, "the text to go on with")->required();
  app.add_option("--tokens", options.max_new_tokens, "tokens to add at most [100]");
  app.add_option("--temperature", options.temperature, "0: always the most likely token [1]");
  app.add_option("--top-k", options.top_k, "only the k most likely tokens; 0: all [0]");
  app.add_option("--top-p", options.top_p, "only the fewest tokens whose probabilities reach p [1]");
  app.add_option("--seed", options.seed, "the same seed gives the same text [0]");
  app.add_option("--tokenizer", arguments.tokenizer, "instead of the run's data.tokenizer");
  app.add_option("-n,--ranks", arguments.ranks, "start so many ranks on this host [1]")
      ->check(at_least_one());
  app.add_option("--budget", arguments.budget, kBudgetHelp + ", once a text [all]");
  app.add_option("--disk", arguments.disk, kDiskHelp);
  app.add_option("--device", arguments.device, kDeviceHelp)->capture_default_str();
  if (!parse(app, argc, argv)) return 0;
  ToolDevice device(arguments.device);
  const Ranks ranks = ranks_of(arguments.ranks);
  const Request request = check(arguments);
  return ranks.starts ? launch_self(ranks.ranks, argc, argv)
                      : generate_here(arguments, request, ranks.job, device);
}

}  // namespace zero::tool
