// zero fit TEXT...
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "fit_pace.h"
#include "fit_plan.h"
#include "fit_ranks.h"
#include "fit_text.h"
#include "launch/process.h"
#include "median.h"
#include "next_steps.h"
#include "ranks.h"
#include "text.h"
#include "verbs.h"
#include "zero/error.h"
#include "zero/launch.h"
#include "zero/load_model.h"
#include "zero/plan_report.h"

namespace zero::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr int64_t kMeasuredSteps = 24;
constexpr int64_t kParts = 4;           // a sample after each
constexpr double kTrainedShare = 0.92;  // of the time; the rest is for evaluation, samples and starts
constexpr double kLatePart = 1.25;      // times its share of the time: a part ends there
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

double seconds_until(Clock::time_point end) { return Seconds(end - Clock::now()).count(); }

// What each step after `after` took.
std::vector<double> step_times_s(const fs::path& run, int64_t after) {
  std::ifstream in(run / "metrics.jsonl");
  std::vector<double> steps;
  for (std::string line; std::getline(in, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("step_s") && json["step"] > after) steps.push_back(json["step_s"].get<double>());
  }
  return steps;
}

// Without the first ones, which pay for memory that later ones reuse.
double measured_step_s(const fs::path& run) {
  const std::vector<double> steps = step_times_s(run, 0);
  require(std::ssize(steps) == kMeasuredSteps, ErrorKind::Io, run.string(), "it lacks measured steps");
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
  measured.exit = on_ranks(request.ranks,
                           [&] { return fit_train_rank(config, {.until = kMeasuredSteps, .quiet = true}); });
  if (measured.exit == 0) measured.step_s = measured_step_s(config.run.directory);
  fs::remove_all(config.run.directory);
  return measured;
}

struct Schedule {
  int exit = 0;
  std::string size;
  int64_t steps = 0;
};

Schedule choose(const FitRequest& request, const FitText& text, Clock::time_point end) {
  if (request.steps > 0)
    return {.size = request.model.empty() ? "tiny" : request.model, .steps = request.steps};
  const auto steps_left = [&](double step_s) {
    return std::clamp<int64_t>(static_cast<int64_t>(seconds_until(end) / step_s), kParts, kMostSteps);
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

// Part `number` of the training, from 1 on. Where the parts before were late, or this one is, what comes
// after is shortened; what comes after the last one is the end of a shortened run.
FitPart part_of(const FitRequest& request, int64_t number, int64_t done, int64_t steps,
                Clock::time_point end) {
  const int64_t parts = std::max<int64_t>(1, kParts + 1 - number);
  FitPart part{.until = done + std::max<int64_t>(1, (steps - done) / parts), .introduces = number == 1};
  if (request.steps == 0 && number <= kParts) {
    const double share_s = std::max(0.0, seconds_until(end)) / static_cast<double>(parts) * kLatePart;
    part.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(share_s));
  }
  return part;
}

struct DonePart {
  int64_t number = 1, before = 0, done = 0;  // steps before it, and after
  Clock::time_point begin;
};

// How many steps in all the time holds that is left, by what those of a part took, and its starts and sample.
int64_t steps_by_pace(const DonePart& part, const fs::path& run, int64_t planned, double left_s) {
  std::vector<double> took_s = step_times_s(run, part.before);
  require(std::ssize(took_s) == part.done - part.before, ErrorKind::Io, run.string(), "it lacks steps");
  const double between_s = -seconds_until(part.begin) - std::reduce(took_s.begin(), took_s.end());
  // The lower median: a machine that stood still for a while is not slower for that.
  const auto usual = took_s.begin() + (std::ssize(took_s) - 1) / 2;
  std::nth_element(took_s.begin(), usual, took_s.end());
  const auto parts_left = static_cast<double>(std::max<int64_t>(1, kParts - part.number));
  return steps_in_time(planned, part.done, *usual, left_s - between_s * parts_left);
}

int fit(const FitRequest& request, const std::string& size, Config config, const FitText& text,
        Clock::time_point end) {
  int64_t done = 0;
  for (int64_t number = 1; done < config.run.steps; ++number) {
    const auto begin = Clock::now();
    const int64_t before = done;
    const FitPart part = part_of(request, number, done, config.run.steps, end);
    if (const int exit = on_ranks(request.ranks, [&] { return fit_train_rank(config, part); })) return exit;
    done = find_model(request.out).step;
    const bool last = done == config.run.steps;
    if (const int exit =
            on_ranks(request.ranks, [&] { return fit_look_rank(config, text.held_out_text, last); }))
      return exit;
    if (last || request.steps > 0) continue;
    const int64_t steps =
        steps_by_pace({number, before, done, begin}, request.out, config.run.steps, seconds_until(end));
    if (steps == config.run.steps) continue;
    std::cout << "it takes longer than measured: " << steps << " steps instead of " << config.run.steps
              << ", to end in time" << std::endl;
    config = fit_config(request, size, text, steps);
  }
  std::cout << "saved: " << request.out << "\n" << next_steps(request.out, true) << std::flush;
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
  Clock::time_point end;
  const Config config = leaving_nothing_on_failure(request.out, [&] {
    text = documents.write(fs::path(request.out) / "data");
    std::cout << "text: " << text.train_bytes << " bytes, " << text.train_tokens
              << " tokens of a vocabulary of " << text.vocab_size << "; " << text.held_out_bytes
              << " bytes held out" << std::endl;
    const Seconds trained(request.minutes * 60 * kTrainedShare);
    end = Clock::now() + std::chrono::duration_cast<Clock::duration>(trained);
    schedule = choose(request, text, end);
    return schedule.exit == 0 ? fit_config(request, schedule.size, text, schedule.steps) : Config{};
  });
  if (schedule.exit != 0) return schedule.exit;
  std::cout << "training: " << schedule.size << ", " << schedule.steps << " steps of "
            << config.train_batch_size * config.data.sequence_length << " tokens on " << request.ranks
            << (request.ranks == 1 ? " rank\n" : " ranks\n");
  return fit(request, schedule.size, config, text, end);
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
