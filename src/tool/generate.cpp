// zero generate MODEL --prompt TEXT
#include "zero/generate.h"

#include <iostream>

#include "text.h"
#include "verbs.h"
#include "zero/cpu_allocator.h"
#include "zero/engine_options.h"
#include "zero/error.h"
#include "zero/load_model.h"
#include "zero/utf8.h"

namespace zero::tool {
namespace {

struct GenerateArguments {
  std::string model, prompt, tokenizer;
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

int generate(GenerateArguments arguments) {
  arguments.options.check();
  require_utf8(arguments.prompt, "--prompt");
  const SavedModel saved = find_model(arguments.model);
  const Tokenizer tokenizer = load_tokenizer(arguments, saved);
  const std::vector<int32_t> ids = tokenizer.encode(arguments.prompt, "--prompt");
  require(!ids.empty(), ErrorKind::Config, "--prompt", "expected some text, got none");
  const at::ScalarType dtype = saved.config.precision.param_dtype == Dtype::bf16 ? at::kBFloat16 : at::kFloat;
  const std::shared_ptr<LanguageModel> model = load_model(saved, dtype);
  model->eval();
  if (const auto end = tokenizer.end_of_text()) arguments.options.stop_token = *end;
  if (saved.end_token) arguments.options.stop_token = saved.end_token;
  const std::vector<int64_t> prompt(ids.begin(), ids.end());
  const std::vector<int64_t> made = generate_tokens(*model, prompt, arguments.options);

  // The model may have rows that are no token of the vocabulary; they stand for no bytes.
  std::string bytes;
  for (const int64_t token : made) {
    const auto id = static_cast<int32_t>(token);
    if (token < tokenizer.vocab_size()) bytes += tokenizer.decode(std::span(&id, 1));
  }
  std::cout << arguments.prompt << printable(bytes) << std::endl;
  return 0;
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
  if (!parse(app, argc, argv)) return 0;
  return generate(arguments);
}

}  // namespace zero::tool
