#include "verbs.h"

#include <ATen/Context.h>

#include <cstdio>
#include <filesystem>
#include <iostream>

#include "compute/cuda_library.h"
#include "zero/error.h"
#include "zero/launch.h"
#include "zero/mesh.h"

namespace zero::tool {

std::span<const Verb> verbs() {
  static constexpr Verb kVerbs[] = {
      {"fit", "your own text to a trained model, in the time that you give", run_fit, Output::Progress},
      {"tokenize", "text to a token file", run_tokenize},
      {"config", "a configuration to start from, or check one", run_config},
      {"convert-config", "DeepSpeed's, accelerate's or the Trainer's settings as a configuration",
       run_convert_config},
      {"plan", "bytes per rank and traffic per step, without any ranks", run_plan},
      {"simulate", "one rank of many, with shapes instead of data: memory, traffic, time", run_simulate},
      {"pipeline", "schedules of a pipeline: bubble, memory, a drawing", run_pipeline},
      {"train", "train a model; with --ranks N on that many local ranks", run_train, Output::Progress},
      {"report", "a page of curves about one or several runs", run_report},
      {"eval", "loss and perplexity of a trained model", run_eval},
      {"generate", "text from a trained model", run_generate},
      {"inspect", "what is in a checkpoint", run_inspect},
      {"verify", "check every byte of a checkpoint or of a token file", run_verify},
      {"consolidate", "a model directory for transformers from a checkpoint", run_consolidate},
      {"launch", "start several local ranks of any program", run_launch, Output::Progress},
      {"bench", "time training steps on this machine", run_bench},
      {"doctor", "what this machine lacks for training, and what to change", run_doctor},
      {"completion", "a script that completes this program's words in bash or zsh", run_completion},
  };
  return kVerbs;
}

const CLI::Validator& at_least_one() {
  static const CLI::Validator validator(
      [](std::string& text) {
        int64_t value = 0;
        return CLI::detail::lexical_cast(text, value) && value >= 1
                   ? std::string()
                   : "expected a whole number from 1 on, got " + text;
      },
      "", "at least one");
  return validator;
}

bool parse(CLI::App& app, int argc, char** argv) {
  app.name(std::string("zero ") + argv[0]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return false;
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    for (char& c : text)
      if (c == '\n') c = ' ';
    fail(ErrorKind::Config, app.get_name(), text, "see " + app.get_name() + " --help");
  }
  return true;
}

int launch_self(int ranks, int argc, char** argv, std::chrono::milliseconds grace) {
  LaunchOptions options;
  options.ranks = ranks;
  if (detail::cuda_library().is_loaded && at::hasCUDA()) {
    options.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
    options.command.insert(options.command.end(), argv, argv + argc);
  } else {
    // argv[-1], the program, is there: run_tool() took the verb from behind it.
    options.body = [=] { return run_tool(argc + 1, argv - 1); };
  }
  options.lead_rank_reports = true;
  options.grace = grace;
  return launch(options);
}

bool started_by_launcher() { return rendezvous_from_environment().launcher != "none"; }

}  // namespace zero::tool
