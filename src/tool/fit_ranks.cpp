#include "fit_ranks.h"

#include <array>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/output_file.h"
#include "packed_size.h"
#include "ranks.h"
#include "stop_signal.h"
#include "text.h"
#include "zero/from_config.h"
#include "zero/inference.h"
#include "zero/train.h"

namespace zero::tool {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPromptTokens = 12;

std::string bits_text(double bits) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.3f", bits);
  return text.data();
}

// A program that is not there has no figure.
nlohmann::ordered_json packed_bits(const std::vector<std::string>& command, const fs::path& file,
                                   int64_t bytes) {
  const auto size = packed_size(command, file);
  if (!size) return nullptr;
  return 8 * static_cast<double>(*size) / static_cast<double>(bytes);
}

void print_score(const Config& config, const std::string& file, const EvalResult& result) {
  const auto bytes = static_cast<int64_t>(fs::file_size(file));
  const double bits =
      result.loss / std::log(2.0) * static_cast<double>(result.tokens) / static_cast<double>(bytes);
  const nlohmann::ordered_json score = {{"loss", result.loss},
                                        {"perplexity", result.perplexity},
                                        {"tokens", result.tokens},
                                        {"bytes", bytes},
                                        {"bits_per_byte", bits},
                                        {"gzip_bits_per_byte", packed_bits({"gzip", "-9"}, file, bytes)},
                                        {"xz_bits_per_byte", packed_bits({"xz", "-9e"}, file, bytes)}};
  const auto shown = [&](const char* key) {
    return score[key].is_null() ? std::string("not installed") : bits_text(score[key].get<double>());
  };
  std::cout << "held-out text, bits per byte: " << bits_text(bits)
            << "   gzip -9: " << shown("gzip_bits_per_byte") << "   xz -9e: " << shown("xz_bits_per_byte")
            << "   (" << bytes << " bytes, perplexity " << result.perplexity << ")\n";
  replace_file(fs::path(config.run.directory) / "fit.json", score.dump(2) + "\n");
}

void print_sample(Inference& inference, const SavedModel& saved, const TokenFile& held_out, bool prints) {
  const Tokenizer tokenizer = Tokenizer::load(saved.config.data.tokenizer);
  std::vector<int32_t> ids(std::min<int64_t>(kPromptTokens, held_out.size() - 1));
  held_out.read(0, ids);
  GenerateOptions options{.max_new_tokens = 80, .temperature = 0.8, .top_p = 0.95, .seed = 1};
  options.stop_tokens = saved.end_tokens;
  if (const auto end = tokenizer.end_of_text()) options.stop_tokens.push_back(*end);
  const std::vector<int64_t> prompt(ids.begin(), ids.end());
  const std::string made = decoded(tokenizer, inference.generate(prompt, options));
  if (prints)
    std::cout << "sample after step " << saved.step << ", which goes on from |:\n"
              << printable(tokenizer.decode(ids)) << "|" << printable(made) << "\n"
              << std::endl;
}

}  // namespace

int fit_train_rank(const Config& config, const FitPart& part) {
  watch_stop_signals();
  const Mesh mesh = join_ranks(config, rendezvous_from_environment(), mesh_options_of(config), nullptr);
  TrainOptions options;
  options.resume = part.quiet ? "" : "auto";
  options.progress = part.quiet ? nullptr : stdout;
  options.introduction = part.introduces;
  options.stop_signal = [&] {
    const bool late = part.deadline && std::chrono::steady_clock::now() > *part.deadline;
    return stop_signal() == 0 && late ? SIGALRM : stop_signal();
  };
  options.pause_after = part.until;
  const TrainResult result = train(config, mesh, options);
  // One rank's SIGINT, and the time that is over for another: to be told to stop is what counts.
  const int told = stop_signal() != 0 ? stop_signal() : result.signal;
  return told == 0 || told == SIGALRM ? 0 : 128 + told;
}

int fit_look_rank(const Config& config, const std::string& held_out_text, bool score) {
  const SavedModel saved = find_model(config.run.directory);
  const Rendezvous job = rendezvous_from_environment();
  const Mesh mesh = join_ranks(saved.config, job, mesh_for_inference(saved.config, job.size), nullptr);
  try {
    Inference inference(saved, mesh, {});
    const TokenFile held_out = TokenFile::open(config.data.eval);
    if (score) {
      const EvalResult result =
          inference.evaluate(held_out, {.sequence_length = config.data.sequence_length, .batch_size = 8});
      if (mesh.rank() == 0) print_score(config, held_out_text, result);
    }
    print_sample(inference, saved, held_out, mesh.rank() == 0);
    return 0;
  } catch (const std::exception& error) {
    mesh.report_failure(error.what());
    throw;
  }
}

}  // namespace zero::tool
