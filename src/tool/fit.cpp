// zero fit TEXT...
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "fit_plan.h"
#include "fit_ranks.h"
#include "fit_text.h"
#include "launch/process.h"
#include "median.h"
#include "ranks.h"
#include "text.h"
#include "verbs.h"
#include "zero/error.h"
#include "zero/launch.h"
#include "zero/plan_report.h"

namespace zero::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int64_t kMeasuredSteps = 24;
constexpr int64_t kParts = 4;           // a sample after each
constexpr double kTrainedShare = 0.92;  // of the time; the rest is for evaluation, samples and starts
constexpr int64_t kMostSteps = 10'000'000;

struct FitArguments {
  FitRequest request;
  std::vector<std::string> texts;
  std::string memory, extensions = ".txt,.md,.rst";
};

void check(FitArguments& arguments) {
  FitRequest& request = arguments.request;
  require(!started_by_launcher(), ErrorKind::Config, "zero fit", "it starts its ranks itself",
          "run it without a launcher; -n says how many");
  require(request.minutes > 0 && request.minutes <= 1e6, ErrorKind::Config, "--minutes",
          "expected a time above 0, got " + std::to_string(request.minutes));
  require(!fs::exists(request.out) || (fs::is_directory(request.out) && fs::is_empty(request.out)),
          ErrorKind::Config, request.out, "it is there already",
          "give another --out; zero train " + request.out + "/config.json --resume auto goes on with a run");
  check_fit_model(request.model);
  if (!arguments.memory.empty()) request.memory_bytes = parse_bytes(arguments.memory, "--memory");
  // One whose cores are not all its own would wait for the others'.
  if (request.ranks == 0)
    request.ranks = static_cast<int>(std::clamp<int64_t>(detail::available_cores(), 1, 8));
}

int on_ranks(int ranks, std::function<int()> body) {
  LaunchOptions options;
  options.ranks = ranks;
  options.body = std::move(body);
  options.lead_rank_reports = true;
  options.grace = std::chrono::minutes(5);  // a rank that is told to stop finishes its step and saves
  std::cout.flush();
  return launch(options);
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The median step of a run, without the first ones, which pay for memory that later ones reuse.
double median_step_s(const fs::path& metrics) {
  std::ifstream in(metrics);
  std::vector<double> steps;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("step_s")) steps.push_back(json["step_s"].get<double>());
  }
  require(std::ssize(steps) == kMeasuredSteps, ErrorKind::Io, metrics.string(), "it lacks measured steps");
  return median({steps.begin() + kMeasuredSteps / 3, steps.end()});
}

struct Measured {
  int exit = 0;
  double step_s = 0;
};

Measured measure(const FitRequest& request, const std::string& size, const FitText& text) {
  Config config = fit_config(request, size, text, kMeasuredSteps);
  config.run.directory = (fs::path(request.out) / "measured").string();
  config.checkpoint.save_at_end = false;
  config.data.eval.clear();
  Measured measured;
  measured.exit = on_ranks(request.ranks, [&] { return fit_train_rank(config, kMeasuredSteps, true); });
  if (measured.exit == 0) measured.step_s = median_step_s(fs::path(config.run.directory) / "metrics.jsonl");
  fs::remove_all(config.run.directory);
  return measured;
}

struct Schedule {
  int exit = 0;
  std::string size;
  int64_t steps = 0;
};

Schedule choose(const FitRequest& request, const FitText& text) {
  if (request.steps > 0)
    return {.size = request.model.empty() ? "tiny" : request.model, .steps = request.steps};
  const auto begin = Clock::now();
  const auto steps_left = [&](double step_s) {
    const double left = request.minutes * 60 * kTrainedShare - seconds_since(begin);
    return std::clamp<int64_t>(static_cast<int64_t>(left / step_s), kParts, kMostSteps);
  };
  std::string size = request.model.empty() ? "tiny" : request.model;
  Measured measured = measure(request, size, text);
  if (measured.exit == 0 && request.model.empty()) {
    const Config config = fit_config(request, size, text, kMeasuredSteps);
    const double tokens = static_cast<double>(steps_left(measured.step_s) * config.train_batch_size *
                                              config.data.sequence_length);
    const std::string suitable = suitable_model(tokens);
    if (suitable != size) measured = measure(request, size = suitable, text);
  }
  if (measured.exit != 0) return {.exit = measured.exit, .size = {}, .steps = 0};
  return {.size = size, .steps = steps_left(measured.step_s)};
}

int fit(const FitRequest& request, const Config& config, const FitText& text) {
  const int64_t parts = std::min(kParts, config.run.steps);
  for (int64_t part = 1; part <= parts; ++part) {
    const int64_t until = config.run.steps * part / parts;
    int exit = on_ranks(request.ranks, [&] { return fit_train_rank(config, until, false); });
    if (exit == 0)
      exit =
          on_ranks(request.ranks, [&] { return fit_look_rank(config, text.held_out_text, part == parts); });
    if (exit != 0) return exit;
  }
  std::cout << "saved: " << request.out << "; zero generate " << request.out
            << " --prompt TEXT goes on with a text" << std::endl;
  return 0;
}

// Where nothing is trained in the end, nothing stays.
template <typename Work>
auto leaving_nothing_on_failure(const fs::path& out, Work work) {
  try {
    return work();
  } catch (...) {
    fs::remove_all(out / "data");
    std::error_code in_use;
    fs::remove(out, in_use);
    throw;
  }
}

int prepare_and_fit(const FitRequest& request, const FitDocuments& documents) {
  FitText text;
  Schedule schedule;
  const Config config = leaving_nothing_on_failure(request.out, [&] {
    text = documents.write(fs::path(request.out) / "data");
    std::cout << "text: " << text.train_bytes << " bytes, " << text.train_tokens
              << " tokens of a vocabulary of " << text.vocab_size << "; " << text.held_out_bytes
              << " bytes held out" << std::endl;
    schedule = choose(request, text);
    return schedule.exit == 0 ? fit_config(request, schedule.size, text, schedule.steps) : Config{};
  });
  if (schedule.exit != 0) return schedule.exit;
  std::cout << "training: " << schedule.size << ", " << schedule.steps << " steps of "
            << config.train_batch_size * config.data.sequence_length << " tokens on " << request.ranks
            << (request.ranks == 1 ? " rank\n" : " ranks\n");
  return fit(request, config, text);
}

}  // namespace

int run_fit(int argc, char** argv) {
  FitArguments arguments;
  FitRequest& request = arguments.request;
  request.out = "runs/fit";
  CLI::App app(
      "zero fit TEXT... [OPTIONS]\n"
      "A language model of your own text: trains a vocabulary and a model in the time that you give, "
      "compares "
      "it\n"
      "with gzip and xz on a part of the text that was held out, and saves what `zero generate` goes on "
      "from.");
  app.add_option("texts", arguments.texts, "text files, or folders with all below them; gzip is unpacked")
      ->required();
  app.add_option("--model", request.model,
                 "tiny, small, gpt2, or a model directory to fine-tune [what suits the time]");
  app.add_option("--minutes", request.minutes, "to train and evaluate [5]");
  app.add_option("--steps", request.steps, "train so many instead, whatever the time")->check(at_least_one());
  app.add_option("--memory", arguments.memory, "that a rank may take, such as 4GiB [not bounded]");
  request.ranks = 0;
  app.add_option("-n,--ranks", request.ranks, "on this host [one a core, at most 8]")->check(at_least_one());
  app.add_option("--out", request.out, "directory for all that is made, a new one")->capture_default_str();
  app.add_option("--extensions", arguments.extensions, "which files of folders count; \"\" for all")
      ->capture_default_str();
  if (!parse(app, argc, argv)) return 0;
  check(arguments);
  FitTextOptions options{.inputs = {arguments.texts.begin(), arguments.texts.end()},
                         .extensions = words_of(arguments.extensions)};
  if (fs::is_directory(request.model)) options.tokenizer = request.model;
  const FitDocuments documents(options);
  return prepare_and_fit(request, documents);
}

}  // namespace zero::tool
